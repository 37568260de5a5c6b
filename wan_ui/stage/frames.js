// Conversion between times and frame numbers of a video.

/** Returns the number of the frame at a time, from 0. @param {number} seconds @param {number} fps @param {number} [numFrames] */
export const frameAtTime = (seconds, fps, numFrames = Infinity) => Math.min(numFrames - 1, Math.floor(seconds * fps + 0.001));

/** Returns the middle of a frame's display time, in seconds. @param {number} frame @param {number} fps */
export const timeOfFrame = (frame, fps) => (frame + 0.5) / fps;

/** Returns the frame that is `by` frames away, in a video that loops. @param {number} frame @param {number} by @param {number} numFrames */
export const wrapFrame = (frame, by, numFrames) => (frame + by + numFrames) % numFrames;
