// Converts times of the film to places on the timeline and back. Widths of blocks are not proportional to their lengths.
import { clamp } from '../components/text.js';

/** @typedef {{from: number, seconds: number, left: number, width: number}} Block `from` in seconds; `left` and `width` in pixels. */

/** Returns the place of a time, in pixels. @param {readonly Block[]} blocks @param {number} time */
export const leftOf = (blocks, time) => {
  const block = blocks.findLast(one => one.from <= time) ?? blocks[0];
  return block.left + clamp((time - block.from) / block.seconds, 0, 1) * block.width;
};

/** Returns the time at a place, in seconds. @param {readonly Block[]} blocks @param {number} left */
export const timeAt = (blocks, left) => {
  const block = blocks.findLast(one => one.left <= left) ?? blocks[0];
  return block.from + clamp((left - block.left) / block.width, 0, 1) * block.seconds;
};
