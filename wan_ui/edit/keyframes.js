// Places keyframes. Each frame has at most one keyframe.

/** Returns the free frame that is nearest to `wanted` in a video whose last frame is `last`, null if all frames are taken.
 * @param {number} wanted @param {readonly number[]} taken @param {number} last @returns {number | null} */
export const freeFrame = (wanted, taken, last) => {
  const near = nearestFrame(wanted, last);
  for (let off = 0; off <= last; off++)
    for (const frame of [near - off, near + off]) if (frame >= 0 && frame <= last && !taken.includes(frame)) return frame;
  return null;
};

/** @param {number} wanted @param {number} last */
export const nearestFrame = (wanted, last) => Math.max(0, Math.min(last, Math.round(wanted)));

/** Returns the frame of the next keyframe: first the ends of the video, then the middle of the widest gap. @param {readonly number[]} taken @param {number} last */
export const nextFrame = (taken, last) => {
  const freeEnd = [0, last].find(frame => !taken.includes(frame));
  if (freeEnd !== undefined) return freeEnd;
  const sorted = taken.toSorted((one, other) => one - other);
  let [middle, widest] = [0, 0];
  for (let place = 1; place < sorted.length; place++) {
    const gap = sorted[place] - sorted[place - 1];
    if (gap > widest) [middle, widest] = [sorted[place - 1] + (gap >> 1), gap];
  }
  return middle;
};

/** Returns the first free frame from `wanted` on, in the direction of `step`, null outside the video. @param {number} wanted @param {number} step
 * @param {readonly number[]} taken @param {number} last */
export const frameBeyond = (wanted, step, taken, last) => {
  let frame = wanted;
  while (step && taken.includes(frame)) frame += Math.sign(step);
  return frame >= 0 && frame <= last ? frame : null;
};
