// Which frame of a video is shown at a moment.

/** The number of the frame at this time, from 0. @param {number} seconds @param {number} fps @param {number} [numFrames] */
export const frameAt = (seconds, fps, numFrames = Infinity) => Math.min(numFrames - 1, Math.floor(seconds * fps + 0.001));

/** The middle of a frame's time, in seconds. @param {number} frame @param {number} fps */
export const timeOf = (frame, fps) => (frame + 0.5) / fps;

/** The frame that is `by` frames away, in a video that starts again at its end. @param {number} frame @param {number} by @param {number} numFrames */
export const frameBeside = (frame, by, numFrames) => (frame + by + numFrames) % numFrames;
