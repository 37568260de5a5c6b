// Moments of the film and places on its timeline. The blocks are not all as wide as they are long, so both follow the blocks.

/** @typedef {{from: number, seconds: number, left: number, width: number}} Block `from` in seconds; `left` and `width` in pixels. */

/** @param {number} value */
const share = value => Math.min(1, Math.max(0, value));

/** The place of a moment. @param {readonly Block[]} blocks @param {number} time */
export const leftOf = (blocks, time) => {
  const block = blocks.findLast(one => one.from <= time) ?? blocks[0];
  return block.left + share((time - block.from) / block.seconds) * block.width;
};

/** The moment at a place. @param {readonly Block[]} blocks @param {number} left */
export const timeAt = (blocks, left) => {
  const block = blocks.findLast(one => one.left <= left) ?? blocks[0];
  return block.from + share((left - block.left) / block.width) * block.seconds;
};
