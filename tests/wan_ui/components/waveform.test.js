import assert from 'node:assert/strict';
import { test } from 'node:test';
import { peaksOf } from '../../../wan_ui/components/waveform.js';

test('a peak is the loudest sample of all channels, as a share of the loudest of all', () => {
  const left = Float32Array.of(0.1, -0.5, 0, 0);
  const right = Float32Array.of(0, 0, 0.25, -0.2);
  assert.deepEqual([...peaksOf([left, right], 2)], [1, 0.5]);
});

test('a sound that is shorter than the video has silence after it', () => {
  assert.deepEqual([...peaksOf([Float32Array.of(0.5, 0.5)], 4, 1)], [1, 1, 0, 0]);
});

test('noise is not drawn as a sound', () => {
  const [peak] = peaksOf([Float32Array.of(0.001)], 1);
  assert.ok(peak < 0.06);
});
