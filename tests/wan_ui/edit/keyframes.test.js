import assert from 'node:assert/strict';
import { test } from 'node:test';
import { frameBeyond, freeFrame, nearestFrame, nextFrame } from '../../../wan_ui/edit/keyframes.js';

test('a keyframe takes the free frame that is nearest', () => {
  assert.equal(freeFrame(8.4, [], 16), 8);
  assert.equal(freeFrame(8, [8], 16), 7);
  assert.equal(freeFrame(8, [7, 8], 16), 9);
  assert.equal(freeFrame(-5, [0], 16), 1);
  assert.equal(freeFrame(1, [0, 1], 1), null);
  assert.equal(nearestFrame(99, 16), 16);
});

test('new keyframes go to the ends, then into the widest gap', () => {
  assert.equal(nextFrame([], 16), 0);
  assert.equal(nextFrame([0], 16), 16);
  assert.equal(nextFrame([16, 0], 16), 8);
  assert.equal(nextFrame([0, 16, 4], 16), 10);
});

test('a key moves a keyframe past those that are taken', () => {
  assert.equal(frameBeyond(5, 1, [5, 6], 16), 7);
  assert.equal(frameBeyond(5, -1, [5, 4], 16), 3);
  assert.equal(frameBeyond(16, 1, [16], 16), null);
  assert.equal(frameBeyond(9, 0, [], 16), 9);
});
