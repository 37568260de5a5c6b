// The arithmetic of a clip's part, of sizes and of margins. Times are in seconds; frames are counted at the model's rate.

/**
 * What the chosen model allows: see `_option` in `wan_ui/edit/html.py`.
 * @typedef {object} Limits
 * @property {string} title
 * @property {number} fps
 * @property {number} frame_step
 * @property {number} first_frames
 * @property {number} min_frames
 * @property {number} max_frames
 * @property {number} num_frames
 * @property {number[]} frame_counts
 * @property {number[][]} sizes
 * @property {number} steps
 * @property {number[]} guidance
 * @property {string} negative_prompt
 * @property {number} max_references
 * @property {string[]} ways
 * @property {string[]} extends
 * @property {string[]} scaled
 * @property {number[]} scales
 * @property {boolean} beside
 * @property {string} drive_prompt
 * @property {string[]} inputs
 */

/** @typedef {{width: number, height: number}} Size */
/** @typedef {Pick<Limits, 'fps' | 'frame_step' | 'first_frames' | 'min_frames' | 'max_frames'>} Counts */

/** The lengths of a clip that is extended: any. */
export const ANY_LENGTH = { frame_step: 1, first_frames: 1, min_frames: 1, max_frames: Infinity };

/**
 * How many frames the model can take from `start` to the clip's end. `rounding`: the part of a frame that may be missing.
 * @param {number} start @param {number} seconds The clip's length. @param {Counts} counts @param {number} rounding
 */
export const mostFrames = (start, seconds, counts, rounding) =>
  Math.min(counts.max_frames, Math.floor((seconds - start) * counts.fps + rounding));

/** The latest start of a part with so many frames. @param {number} numFrames @param {number} seconds @param {number} fps @param {number} rounding */
export const latestStart = (numFrames, seconds, fps, rounding) => seconds - (numFrames - rounding) / fps;

/** The nearest number of frames that the model can make, of at most `most`. @param {number} wanted @param {number} most @param {Counts} counts */
export const fittingFrames = (wanted, most, { frame_step: step, first_frames: first, min_frames: least }) => {
  const nearest = first + step * Math.round((wanted - first) / step);
  return Math.max(least, Math.min(nearest, first + step * Math.floor((most - first) / step)));
};

/**
 * The part of a clip that is nearest to the wanted one. `fits`: whether the clip is long enough for the model.
 * @param {number} start @param {number} wanted Frames. @param {number} seconds @param {Counts} counts @param {number} rounding
 */
export const fittingPart = (start, wanted, seconds, counts, rounding) => {
  const last = Math.max(0, latestStart(counts.min_frames, seconds, counts.fps, rounding));
  const begin = Math.floor(100 * Math.min(Math.max(0, start), last)) / 100;
  const most = mostFrames(begin, seconds, counts, rounding);
  return { start: begin, frames: fittingFrames(wanted, most, counts), fits: most >= counts.min_frames };
};

/** The model's own length, or that of the clip if the clip drives the video. @param {Limits} limits @param {number | null} clipSeconds */
export const usualLength = (limits, clipSeconds) =>
  limits.ways.includes('animate') && clipSeconds !== null
    ? Math.min(limits.max_frames, Math.floor(clipSeconds * limits.fps))
    : limits.num_frames;

/** The size whose shape is nearest to a clip's. @param {number[][]} sizes @param {Size} clip */
export const nearestSize = (sizes, clip) => {
  /** @param {number[]} size */
  const distance = ([width, height]) => Math.abs(Math.log(((width / height) * clip.height) / clip.width));
  return sizes.reduce((best, size) => (distance(size) < distance(best) - 1e-6 ? size : best));
};

/**
 * The margins, left, top, right, bottom, around a clip that keeps its whole picture in the video's size. The clip is made smaller
 * if that leaves too little space. Multiples of 8.
 * @param {number[]} size @param {Size} clip
 */
export const proposedMargins = ([width, height], clip) => {
  const scale = Math.min(width / clip.width, height / clip.height);
  /** @param {number} scale */
  const space = scale => [width - Math.round(clip.width * scale), height - Math.round(clip.height * scale)];
  let [across, down] = space(scale);
  if (across < width / 20 && down < height / 20) [across, down] = space(0.75 * scale);
  /** @param {number} space */
  const half = space => 8 * Math.round(space / 16);
  return [half(across), half(down), half(across), half(down)];
};

/** How many steps a restyled clip takes. @param {number} steps @param {number} strength */
export const stepsOf = (steps, strength) => Math.min(Math.trunc(steps * strength), steps);

/**
 * Whether a new video can see so many frames of the clip that it extends: whole latent frames, at most half of the video.
 * @param {number} overlap @param {number} clipFrames @param {number} numFrames The video's. @param {Counts} counts
 */
export const isOverlap = (overlap, clipFrames, numFrames, { first_frames: first, frame_step: step }) =>
  overlap <= mostOverlap(clipFrames, numFrames) && (overlap - first) % step === 0;

/** @param {number} clipFrames @param {number} numFrames */
export const mostOverlap = (clipFrames, numFrames) => Math.min(clipFrames, (numFrames + 1) / 2);

/**
 * Where the thumbnails are drawn, of a sheet of `count` beside each other: as many as fit, each cut to its place.
 * @param {Size} sheet @param {Size} film @param {number} count
 */
export const filmPlaces = (sheet, film, count) => {
  const { height } = sheet;
  const width = sheet.width / count;
  const places = Math.max(1, Math.min(count, Math.round(((film.width / film.height) * height) / width)));
  const wide = film.width / places;
  const shape = Math.min(width / height, wide / film.height);
  const [across, down] = [shape * height, ((shape * film.height) / wide) * height];
  return Array.from({ length: places }, (_, place) => ({
    from: {
      left: Math.floor(((place + 0.5) * count) / places) * width + (width - across) / 2,
      top: (height - down) / 2,
      across,
      down,
    },
    to: { left: place * wide, width: wide },
  }));
};
