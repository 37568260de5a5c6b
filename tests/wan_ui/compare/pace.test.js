import assert from 'node:assert/strict';
import { test } from 'node:test';
import { correctPlayback } from '../../../wan_ui/compare/pace.js';

test('a silent video jumps if it is more than a frame away', () => {
  const pace = { time: 1, isAudible: false };
  assert.deepEqual(correctPlayback({ time: 0.96, duration: 2 }, pace, 16), { speed: 1, jump: null });
  assert.deepEqual(correctPlayback({ time: 0.9, duration: 2 }, pace, 16), { speed: 1, jump: 1 });
});

test('beside a video that is heard, the others change their speed first', () => {
  const pace = { time: 1, isAudible: true };
  assert.deepEqual(correctPlayback({ time: 0.9375, duration: 2 }, pace, 16), { speed: 1.25, jump: null });
  assert.deepEqual(correctPlayback({ time: 1.1, duration: 2 }, pace, 16).speed, 0.75);
  assert.equal(correctPlayback({ time: 0.5, duration: 2 }, pace, 16).jump, 1);
});

test('a shorter video waits at its end', () => {
  assert.equal(correctPlayback({ time: 0.99, duration: 1 }, { time: 3, isAudible: false }, 16).jump, null);
});
