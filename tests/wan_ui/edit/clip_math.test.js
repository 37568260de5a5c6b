import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  ANY_LENGTH,
  filmPlaces,
  fittingFrames,
  fittingPart,
  isOverlap,
  latestStart,
  mostFrames,
  nearestSize,
  proposedMargins,
  stepsOf,
  usualLength,
} from '../../../wan_ui/edit/clip_math.js';

const WAN = { fps: 16, frame_step: 4, first_frames: 1, min_frames: 5, max_frames: 81 };
const ROUNDING = 0.01;

test('a part has a number of frames that the model can make', () => {
  assert.equal(fittingFrames(16, 81, WAN), 17);
  assert.equal(fittingFrames(1, 81, WAN), 5);
  assert.equal(fittingFrames(200, 50, WAN), 49);
  assert.equal(fittingFrames(16, 81, ANY_LENGTH), 16);
});

test('a part lies in the clip and in what the model can make', () => {
  assert.equal(mostFrames(0, 2, WAN, ROUNDING), 32);
  assert.equal(mostFrames(0, 60, WAN, ROUNDING), 81);
  assert.deepEqual(fittingPart(0, 49, 2, WAN, ROUNDING), { start: 0, frames: 29, fits: true });
  assert.deepEqual(fittingPart(-3, 17, 2, WAN, ROUNDING), { start: 0, frames: 17, fits: true });
  assert.equal(fittingPart(0, 17, 0.2, WAN, ROUNDING).fits, false);
  const last = fittingPart(99, 17, 2, WAN, ROUNDING);
  assert.equal(last.frames, 5);
  assert.ok(last.start <= latestStart(5, 2, 16, ROUNDING) && last.start + 5 / 16 <= 2 + ROUNDING);
});

test('a clip that drives a video is used whole, if the model can make so much', () => {
  const driven = { ...WAN, num_frames: 33, ways: ['animate'] };
  assert.equal(usualLength(driven, 2.5), 40);
  assert.equal(usualLength(driven, 60), 81);
  assert.equal(usualLength(driven, null), 33);
  assert.equal(usualLength({ ...driven, ways: ['anew'] }, 2.5), 33);
});

test('the size has the shape that is nearest to the clip', () => {
  const sizes = [
    [832, 480],
    [480, 832],
    [624, 624],
  ];
  assert.deepEqual(nearestSize(sizes, { width: 1920, height: 1080 }), [832, 480]);
  assert.deepEqual(nearestSize(sizes, { width: 1080, height: 1920 }), [480, 832]);
  assert.deepEqual(nearestSize(sizes, { width: 500, height: 480 }), [624, 624]);
  assert.deepEqual(
    nearestSize(
      [
        [832, 480],
        [1664, 960],
      ],
      { width: 832, height: 480 },
    ),
    [832, 480],
  );
});

test('margins go around a clip of another shape; one of the same shape is made smaller', () => {
  assert.deepEqual(proposedMargins([832, 480], { width: 480, height: 480 }), [176, 0, 176, 0]);
  assert.deepEqual(proposedMargins([832, 480], { width: 1664, height: 960 }), [104, 64, 104, 64]);
});

test('a restyled clip takes a share of the steps', () => {
  assert.deepEqual([stepsOf(20, 0.5), stepsOf(20, 1), stepsOf(3, 0.35)], [10, 20, 1]);
});

test('a new video sees whole latent frames of the clip, and half of itself at most', () => {
  const seen = [1, 5, 9, 13, 17].filter(overlap => isOverlap(overlap, 40, 17, WAN));
  assert.deepEqual(seen, [1, 5, 9]);
  assert.equal(isOverlap(5, 3, 17, WAN), false);
  assert.equal(isOverlap(4, 40, 17, WAN), false);
});

test('thumbnails fill the strip without a gap', () => {
  const places = filmPlaces({ width: 1600, height: 90 }, { width: 800, height: 60 }, 10);
  assert.ok(places.length >= 1 && places.length <= 10);
  assert.equal(places[0].to.left, 0);
  assert.ok(Math.abs(places.at(-1).to.left + places.at(-1).to.width - 800) < 1e-9);
  for (const { from } of places) assert.ok(from.left >= 0 && from.left + from.across <= 1600);
});
