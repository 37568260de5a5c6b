// The shots of a storyboard: what each is made by, which videos are kept, how long each takes, and what the server is sent.
//
// A shot that was made has in `made` the job of its video and the `recipe` that it was made by. Its video is kept as long as that is
// the shot's recipe, and the shot continues from the same end of the same video.
import { namedFigures, plainName } from './character_names.js';

export const USUAL_SECONDS = 2; // drawn for a shot whose length is the form's

/** @typedef {import('./character_names.js').Figure} Figure */
/** @typedef {import('./character_names.js').Picture} Picture */
/**
 * The video of a shot. `kept`: the visitor keeps it, whatever it was made by; its recipe is then a pair with the prompt.
 * @typedef {object} Made
 * @property {string} job
 * @property {number} frames
 * @property {number} fps
 * @property {number} first The first frame after those that the shot before has too.
 * @property {string} video
 * @property {string} poster
 * @property {string | [number, string]} recipe
 * @property {string} after What it continued from: see `endMark`.
 * @property {boolean} [kept]
 */
/**
 * `start`: it continues from the shot before ("on"), starts from its prompt ("cut") or from a picture ("image").
 * @typedef {object} Shot
 * @property {string} id
 * @property {string} prompt
 * @property {string} seconds
 * @property {string} seed
 * @property {string} start
 * @property {Picture | null} image
 * @property {number} fade Seconds.
 * @property {[number, number] | null} trim Seconds of the video.
 * @property {Made | null} made
 */
/** @typedef {{path: string, name?: string, start: number, fade: number, volume: number}} Track */
/** @typedef {{shots: Shot[], figures: Figure[], track: Track | null}} Film */

/** @param {Film} film @param {string | null} id */
export const placeOf = (film, id) => film.shots.findIndex(shot => shot.id === id);

/** @param {Film} film @param {Shot} shot */
export const isFirst = (film, shot) => film.shots[0] === shot;

/** Whether a shot continues from the one before it. @param {Film} film @param {Shot} shot */
export const continues = (film, shot) => shot.start === 'on' && !isFirst(film, shot);

/** What a shot is made by. @param {Film} film @param {Shot} shot */
export const recipeOf = (film, shot) => {
  const start = continues(film, shot) ? 'on' : shot.start === 'image' ? shot.image?.path : 'cut';
  const pictures = namedFigures(shot.prompt, film.figures).map(figure => figure.image?.path ?? '');
  return JSON.stringify([shot.prompt, shot.seconds, shot.seed, start, ...(pictures.length ? [pictures] : [])]);
};

/** The recipe of a video that is kept, whatever it was made by. @param {string} prompt @returns {[number, string]} */
export const keptRecipe = prompt => [0, prompt];

/** @param {Shot & {made: Made}} shot */
export const startSeconds = ({ trim, made }) => (trim ? trim[0] : made.first / made.fps);

/** @param {Shot & {made: Made}} shot */
export const endSeconds = ({ trim, made }) => (trim ? trim[1] : made.frames / made.fps);

/** The end of a kept video, from which the next shot continues; "" if the shot is not kept. @param {Film} film @param {Shot | undefined} shot */
export const endMark = (film, shot) => (shot && isKept(film, shot) ? `${shot.made.job}@${endSeconds(shot).toFixed(3)}` : '');

/** Whether a shot's video is used as it is. @param {Film} film @param {Shot} shot @returns {shot is Shot & {made: Made}} */
export const isKept = (film, shot) => {
  const { made } = shot;
  if (!made) return false;
  if (made.kept) return made.recipe[1] === shot.prompt;
  if (made.recipe !== recipeOf(film, shot)) return false;
  return !continues(film, shot) || made.after === endMark(film, film.shots[placeOf(film, shot.id) - 1]);
};

/** How long a shot takes, or null if its length is the form's. @param {Film} film @param {Shot} shot */
export const knownSeconds = (film, shot) =>
  isKept(film, shot) ? Math.max(0.01, endSeconds(shot) - startSeconds(shot)) : Number(shot.seconds) || null;

/** How long a shot is drawn. @param {Film} film @param {Shot} shot */
export const secondsOf = (film, shot) => knownSeconds(film, shot) ?? USUAL_SECONDS;

/** How long a shot and the one before it are faded into each other. @param {Film} film @param {Shot} shot */
export const fadeOf = (film, shot) =>
  isFirst(film, shot) || (continues(film, shot) && !isKept(film, shot)) ? 0 : Number(shot.fade) || 0;

/** @param {Film} film */
export const totalSeconds = film => film.shots.reduce((sum, shot) => sum + secondsOf(film, shot) - fadeOf(film, shot), 0);

/** When each shot starts, in seconds from the start of the film. @param {Film} film */
export const startTimes = film => {
  let time = 0;
  return film.shots.map(shot => {
    const start = time - fadeOf(film, shot);
    time = start + secondsOf(film, shot);
    return start;
  });
};

/** A shot as the server reads it. A kept one is named by its job. @param {Film} film @param {Shot} shot */
const rowOf = (film, shot) => {
  const { prompt, seconds, seed, start, image } = shot;
  const fade = fadeOf(film, shot);
  if (isKept(film, shot)) {
    const { made } = shot;
    const trim = shot.trim || made.first ? { trim: [startSeconds(shot), endSeconds(shot)] } : {};
    return { job: made.job, num_frames: made.frames, fps: made.fps, prompt, cut: start !== 'on', fade, ...trim };
  }
  const picture = start === 'image' && image ? { image: image.path } : {};
  return { prompt: prompt.trim(), seconds, seed, cut: start === 'cut' && !isFirst(film, shot), fade, ...picture };
};

/**
 * What the form sends: the whole film, or the shot `alone` with the one that it continues from.
 * @param {Film} film @param {string | null} alone A shot's id.
 * @param {number} mostFigures How many figures the chosen model can show in a shot.
 */
export const filmText = (film, alone, mostFigures) => {
  const at = placeOf(film, alone);
  const shots = alone === null ? film.shots : film.shots.slice(continues(film, film.shots[at]) ? at - 1 : at, at + 1);
  const rows = shots.map(shot => rowOf(film, shot));
  if (rows.length) rows[0].fade = 0;
  const figures = mostFigures
    ? film.figures.map(({ name, image }) => ({ name: plainName(name), image: image?.path ?? null }))
    : [];
  const { track } = film;
  const sound =
    track && alone === null
      ? { track: track.path, track_start: track.start, track_fade: track.fade, track_volume: track.volume }
      : {};
  return JSON.stringify({ shots: rows, blocks: shots.map(shot => shot.id), ...(figures.length ? { figures } : {}), ...sound });
};

/** The numbers, from 1, of the shots that Generate makes, and of those among them that are made again because of the shot before.
 * @param {Film} film */
export const shotsToMake = film => {
  /** @param {(shot: Shot) => boolean} is */
  const numbers = is => film.shots.flatMap((shot, index) => (is(shot) ? [index + 1] : []));
  return {
    toMake: numbers(shot => !isKept(film, shot)),
    becauseOfBefore: numbers(shot => shot.made !== null && !isKept(film, shot) && shot.made.recipe === recipeOf(film, shot)),
  };
};

/** How loud the track is, from 0 to 1, at a time after its start. @param {Track} track @param {number} time @param {number} left Seconds. */
export const trackVolume = (track, time, left) =>
  Math.min(1, track.volume) * (track.fade ? Math.max(0, Math.min(1, time / track.fade, left / track.fade)) : 1);
