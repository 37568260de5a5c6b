import assert from 'node:assert/strict';
import { test } from 'node:test';
import { isPainted, paintLight, penWidth, pointOnFrame, seenStrokes } from '../../../wan_ui/edit/strokes.js';

const line = (erases = false) => ({ points: [[0, 0]], width: 1, erases });

test('only what was painted after the last clearing is seen', () => {
  const after = line();
  assert.deepEqual(seenStrokes([line(), { clears: true }, after]), [after]);
  assert.equal(isPainted([line(), { clears: true }]), false);
  assert.equal(isPainted([line(true)]), false);
  assert.equal(isPainted([line(true), { picture: {} }]), true);
});

test('a pointer is on the frame, which lies in the middle of its box', () => {
  const box = { left: 10, top: 20, width: 400, height: 400 };
  const frame = { width: 832, height: 416 };
  assert.deepEqual(pointOnFrame({ x: 10, y: 120 }, box, frame), [0, 0]);
  assert.deepEqual(pointOnFrame({ x: 410, y: 320 }, box, frame), [832, 416]);
});

test('a brush is as wide as its share of the shorter side, and never invisible', () => {
  assert.equal(penWidth({ width: 832, height: 480 }, 10), 48);
  assert.equal(penWidth({ width: 8, height: 8 }, 1), 1);
});

test('the light pixels of a mask are painted', () => {
  const data = Uint8ClampedArray.of(255, 255, 255, 255, 0, 0, 0, 255, 255, 255, 255, 0);
  paintLight(data, [229, 72, 77]);
  assert.deepEqual([...data], [229, 72, 77, 255, 229, 72, 77, 0, 229, 72, 77, 0]);
});
