import assert from 'node:assert/strict';
import { test } from 'node:test';
import { leftOf, timeAt } from '../../../wan_ui/form/timeline.js';

const BLOCKS = [
  { from: 0, seconds: 2, left: 0, width: 100 },
  { from: 2, seconds: 8, left: 104, width: 200 },
];

test('moments and places follow the blocks', () => {
  assert.equal(leftOf(BLOCKS, 1), 50);
  assert.equal(leftOf(BLOCKS, 6), 204);
  assert.equal(timeAt(BLOCKS, 204), 6);
  assert.equal(timeAt(BLOCKS, 102), 2);
});

test('what lies outside is at the ends', () => {
  assert.deepEqual([leftOf(BLOCKS, -1), leftOf(BLOCKS, 99)], [0, 304]);
  assert.deepEqual([timeAt(BLOCKS, -9), timeAt(BLOCKS, 999)], [0, 10]);
});
