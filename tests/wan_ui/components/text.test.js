import assert from 'node:assert/strict';
import { test } from 'node:test';
import { clamp, fill } from '../../../wan_ui/components/text.js';

test('the places of a text are filled, whatever format they name', () => {
  assert.equal(fill('{count} of {all} steps', { count: 3, all: 20 }), '3 of 20 steps');
  assert.equal(fill('{seconds:.1f} s, {seconds} s', { seconds: 1.25 }), '1.25 s, 1.25 s');
});

test('a value is kept within its limits', () => {
  assert.deepEqual(
    [-1, 0.5, 3].map(value => clamp(value, 0, 2)),
    [0, 0.5, 2],
  );
});
