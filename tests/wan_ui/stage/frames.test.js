import assert from 'node:assert/strict';
import { test } from 'node:test';
import { frameAt, frameBeside, timeOf } from '../../../wan_ui/stage/frames.js';

test('each frame is found again at the middle of its time', () => {
  for (const fps of [8, 16, 24, 29.97])
    for (let frame = 0; frame < 200; frame++) assert.equal(frameAt(timeOf(frame, fps), fps), frame);
});

test('the last frame lasts until the end, and the first one comes after it', () => {
  assert.equal(frameAt(99, 16, 17), 16);
  assert.equal(frameBeside(16, 1, 17), 0);
  assert.equal(frameBeside(0, -1, 17), 16);
});
