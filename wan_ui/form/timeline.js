// Converts times of the film to places on the timeline and back. Widths of blocks are not proportional to their lengths.

/** @typedef {{from: number, seconds: number, left: number, width: number}} Block `from` in seconds; `left` and `width` in pixels. */

/** @param {number} value */
const share = value => Math.min(1, Math.max(0, value));

/** Returns the place of a time, in pixels. @param {readonly Block[]} blocks @param {number} time */
export const leftOf = (blocks, time) => {
  const block = blocks.findLast(one => one.from <= time) ?? blocks[0];
  return block.left + share((time - block.from) / block.seconds) * block.width;
};

/** Returns the time at a place, in seconds. @param {readonly Block[]} blocks @param {number} left */
export const timeAt = (blocks, left) => {
  const block = blocks.findLast(one => one.left <= left) ?? blocks[0];
  return block.from + share((left - block.left) / block.width) * block.seconds;
};
