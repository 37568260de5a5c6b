// Computes the selected part of a clip, sizes and margins. Times are in seconds. Frames are counted at the model's rate.

/** The limits of the selected model, from `_settings_html` in `wan_ui/edit/html.py`. `fps` is the rate that the visitor typed, else the
 * model's rate.
 * @typedef {{title: string, fps: number, frame_step: number, first_frames: number, min_frames: number, max_frames: number,
 *   num_frames: number, frame_counts: number[], sizes: number[][], max_references: number, ways: string[], extends: string[],
 *   scaled: string[], scales: number[], beside: boolean, drive_prompt: string, inputs: string[],
 *   controls: import('../form/settings.js').Controls}} Limits */

/** @typedef {{width: number, height: number}} Size */
/** @typedef {Pick<Limits, 'fps' | 'frame_step' | 'first_frames' | 'min_frames' | 'max_frames'>} Counts */

/** Limits of the part that Extend uses: any number of frames. */
export const ANY_LENGTH = { frame_step: 1, first_frames: 1, min_frames: 1, max_frames: Infinity };

/** Returns the number of frames from `start` to the clip's end, at most the model's limit. The last frame counts if at most the
 * share `rounding` of its duration is missing.
 * @param {number} start @param {number} seconds The clip's length. @param {Counts} counts @param {number} rounding */
export const mostFrames = (start, seconds, counts, rounding) =>
  Math.min(counts.max_frames, Math.floor((seconds - start) * counts.fps + rounding));

/** Returns the latest start of a part with `numFrames` frames. @param {number} numFrames @param {number} seconds @param {number} fps @param {number} rounding */
export const latestStart = (numFrames, seconds, fps, rounding) => seconds - (numFrames - rounding) / fps;

/** Returns the supported number of frames that is nearest to `wanted`, at most `most`. @param {number} wanted @param {number} most @param {Counts} counts */
export const fittingFrames = (wanted, most, { frame_step: step, first_frames: first, min_frames: least }) => {
  const nearest = first + step * Math.round((wanted - first) / step);
  return Math.max(least, Math.min(nearest, first + step * Math.floor((most - first) / step)));
};

/** Returns the part of the clip that is nearest to the wanted part. `fits`: the clip is long enough for the model.
 * @param {number} start @param {number} wanted Frames. @param {number} seconds @param {Counts} counts @param {number} rounding */
export const fittingPart = (start, wanted, seconds, counts, rounding) => {
  const last = Math.max(0, latestStart(counts.min_frames, seconds, counts.fps, rounding));
  const begin = Math.floor(100 * Math.min(Math.max(0, start), last)) / 100;
  const most = mostFrames(begin, seconds, counts, rounding);
  return { start: begin, frames: fittingFrames(wanted, most, counts), fits: most >= counts.min_frames };
};

/** Returns the model's usual number of frames, for Animate the number of the clip's frames. @param {Limits} limits @param {number | null} clipSeconds */
export const usualLength = (limits, clipSeconds) =>
  limits.ways.includes('animate') && clipSeconds !== null
    ? Math.min(limits.max_frames, Math.floor(clipSeconds * limits.fps))
    : limits.num_frames;

/** Returns the size whose shape is nearest to the clip. @param {number[][]} sizes @param {Size} clip */
export const nearestSize = (sizes, clip) => {
  /** @param {number[]} size */
  const distance = ([width, height]) => Math.abs(Math.log(((width / height) * clip.height) / clip.width));
  return sizes.reduce((best, size) => (distance(size) < distance(best) - 1e-6 ? size : best));
};

/** Returns margins (left, top, right, bottom) around the whole clip in the video's size, as multiples of 8. The clip shrinks if the
 * margins would be too small.
 * @param {number[]} size @param {Size} clip */
export const proposedMargins = ([width, height], clip) => {
  const scale = Math.min(width / clip.width, height / clip.height);
  /** @param {number} scale */
  const space = scale => [width - Math.round(clip.width * scale), height - Math.round(clip.height * scale)];
  let spaces = space(scale);
  if (spaces[0] < width / 20 && spaces[1] < height / 20) spaces = space(0.75 * scale);
  const [across, down] = spaces.map(both => 8 * Math.round(both / 16));
  return [across, down, across, down];
};

/** Returns the number of steps of a restyled clip. @param {number} steps @param {number} strength */
export const stepsOf = (steps, strength) => Math.min(Math.trunc(steps * strength), steps);

/** Returns whether a new video can repeat `overlap` frames of the clip. The overlap must be whole latent frames, at most half of
 * the video.
 * @param {number} overlap @param {number} clipFrames @param {number} numFrames Frames of the new video. @param {Counts} counts */
export const isOverlap = (overlap, clipFrames, numFrames, { first_frames: first, frame_step: step }) =>
  overlap <= mostOverlap(clipFrames, numFrames) && (overlap - first) % step === 0;

/** @param {number} clipFrames @param {number} numFrames */
export const mostOverlap = (clipFrames, numFrames) => Math.min(clipFrames, (numFrames + 1) / 2);

/** Returns which area of the sheet is drawn in which area of the film, for as many thumbnails as fit. Each is cropped to its area.
 * @param {Size} sheet An image of `count` thumbnails side by side. @param {Size} film The canvas. @param {number} count */
export const filmPlaces = (sheet, film, count) => {
  const { height } = sheet;
  const width = sheet.width / count;
  const places = Math.max(1, Math.min(count, Math.round(((film.width / film.height) * height) / width)));
  const wide = film.width / places;
  const shape = Math.min(width / height, wide / film.height);
  const [across, down] = [shape * height, ((shape * film.height) / wide) * height];
  return Array.from({ length: places }, (_, place) => {
    const left = Math.floor(((place + 0.5) * count) / places) * width + (width - across) / 2;
    return { from: { left, top: (height - down) / 2, across, down }, to: { left: place * wide, width: wide } };
  });
};
