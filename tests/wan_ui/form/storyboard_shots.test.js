import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  drawnSeconds,
  endMark,
  fadeSeconds,
  filmText,
  isKept,
  keptRecipe,
  knownSeconds,
  shotRecipe,
  shotsToMake,
  startTimes,
  totalSeconds,
  trackVolume,
} from '../../../wan_ui/form/storyboard_shots.js';

let number = 0;
const shot = given => ({
  id: `shot${number++}`,
  prompt: 'a square',
  seconds: '',
  seed: '',
  start: 'on',
  image: null,
  fade: 0,
  trim: null,
  made: null,
  ...given,
});
const film = (...shots) => ({ shots, figures: [], track: null });
/** Mark the shots of a storyboard as generated, in their order. */
const make = (all, first = 0) => {
  all.shots.forEach((one, index) => {
    const after = one.start === 'on' && index ? endMark(all, all.shots[index - 1]) : '';
    one.made = {
      job: `job${index}`,
      frames: 33,
      fps: 16,
      first,
      video: 'v.mp4',
      poster: 'p.png',
      recipe: shotRecipe(all, one),
      after,
    };
  });
  return all;
};

test('a made shot is kept until what it is made by changes', () => {
  const all = make(film(shot(), shot()));
  assert.deepEqual(shotsToMake(all), { toMake: [], becauseOfBefore: [] });
  all.shots[1].prompt = 'a circle';
  assert.deepEqual(shotsToMake(all), { toMake: [2], becauseOfBefore: [] });
});

test('the length of a shot is unknown while it is the one in the form', () => {
  const all = film(shot(), shot({ seconds: '1.5' }));
  assert.deepEqual(
    all.shots.map(each => knownSeconds(all, each)),
    [null, 1.5],
  );
  assert.equal(knownSeconds(make(all), all.shots[0]), 33 / 16);
});

test('a shot that continues is made again with the shot before, and with its trim', () => {
  const all = make(film(shot(), shot(), shot({ start: 'cut' })));
  all.shots[0].seed = '7';
  assert.deepEqual(shotsToMake(all), { toMake: [1, 2], becauseOfBefore: [2] });
  all.shots[0].seed = '';
  all.shots[0].trim = [0, 1];
  assert.deepEqual(shotsToMake(all), { toMake: [2], becauseOfBefore: [2] });
});

test('a video that the visitor keeps stays with its prompt', () => {
  const all = make(film(shot({ seconds: '3' })));
  all.shots[0].made = { ...all.shots[0].made, kept: true, recipe: keptRecipe('a square') };
  all.shots[0].seconds = '9';
  assert.ok(isKept(all, all.shots[0]));
  all.shots[0].prompt = 'a circle';
  assert.ok(!isKept(all, all.shots[0]));
});

test('the figures in a prompt are part of what a shot is made by', () => {
  const all = { ...film(shot({ prompt: 'Anna waves' })), figures: [{ name: 'Anna', image: { path: '/a.png', url: '' } }] };
  make(all);
  all.figures[0].image.path = '/b.png';
  assert.ok(!isKept(all, all.shots[0]));
});

test('the film is as long as its shots without their fades', () => {
  const all = make(film(shot(), shot({ start: 'cut', fade: 0.5 })));
  assert.equal(drawnSeconds(all, all.shots[0]), 33 / 16);
  assert.equal(fadeSeconds(all, all.shots[1]), 0.5);
  assert.equal(totalSeconds(all), 66 / 16 - 0.5);
  assert.deepEqual(startTimes(all), [0, 33 / 16 - 0.5]);
  assert.equal(totalSeconds(film(shot(), shot({ seconds: '5' }))), 7);
  assert.equal(fadeSeconds(film(shot({ fade: 1 })), all.shots[0]), 0);
});

test('a shot that continues is seen after the frames that both shots have', () => {
  const all = make(film(shot()), 5);
  assert.equal(drawnSeconds(all, all.shots[0]), 28 / 16);
});

test('the server gets kept shots by their jobs, and the others with their settings', () => {
  const all = make(film(shot(), shot()));
  all.shots[1].prompt = ' a circle ';
  all.track = { path: '/t.wav', start: 1, fade: 0.5, volume: 0.8 };
  const sent = JSON.parse(filmText(all, null, 0));
  assert.deepEqual(sent.shots[0], { job: 'job0', num_frames: 33, fps: 16, prompt: 'a square', cut: false, fade: 0 });
  assert.deepEqual(sent.shots[1], { prompt: 'a circle', seconds: '', seed: '', cut: false, fade: 0 });
  assert.deepEqual([sent.track, sent.track_start, sent.track_fade, sent.track_volume], ['/t.wav', 1, 0.5, 0.8]);
  assert.deepEqual(
    sent.blocks,
    all.shots.map(one => one.id),
  );
});

test('a shot that is generated alone is sent with the one from which it continues', () => {
  const all = make(film(shot(), shot(), shot({ start: 'cut' })));
  assert.deepEqual(JSON.parse(filmText(all, all.shots[1].id, 0)).blocks, [all.shots[0].id, all.shots[1].id]);
  assert.deepEqual(JSON.parse(filmText(all, all.shots[2].id, 0)).blocks, [all.shots[2].id]);
});

test('figures are sent only to a model that can show them', () => {
  const all = { ...film(shot()), figures: [{ name: ' Anna  Maria ', image: null }] };
  assert.equal(JSON.parse(filmText(all, null, 0)).figures, undefined);
  assert.deepEqual(JSON.parse(filmText(all, null, 2)).figures, [{ name: 'Anna Maria', image: null }]);
});

test('the track is faded at both ends', () => {
  const track = { path: '', start: 0, fade: 2, volume: 0.5 };
  assert.deepEqual(
    [trackVolume(track, 0, 9), trackVolume(track, 1, 9), trackVolume(track, 5, 5), trackVolume(track, 9, 1)],
    [0, 0.25, 0.5, 0.25],
  );
  assert.equal(trackVolume({ ...track, fade: 0, volume: 2 }, 0, 9), 1);
});
