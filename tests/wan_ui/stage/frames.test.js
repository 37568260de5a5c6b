import assert from 'node:assert/strict';
import { test } from 'node:test';
import { frameAtTime, timeOfFrame, wrapFrame } from '../../../wan_ui/stage/frames.js';

test('each frame is found again at the middle of its time', () => {
  for (const fps of [8, 16, 24, 29.97])
    for (let frame = 0; frame < 200; frame++) assert.equal(frameAtTime(timeOfFrame(frame, fps), fps), frame);
});

test('the last frame lasts until the end, and the first one comes after it', () => {
  assert.equal(frameAtTime(99, 16, 17), 16);
  assert.equal(wrapFrame(16, 1, 17), 0);
  assert.equal(wrapFrame(0, -1, 17), 16);
});
