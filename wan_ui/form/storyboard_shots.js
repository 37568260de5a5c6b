// The shots of a storyboard: their recipes, which videos are kept, their lengths, and the text for the server.
//
// A recipe is the text of all settings that determine a shot's video. A finished shot has in `made` the job and the recipe of its video.
// The video is kept while the shot's recipe is unchanged. A shot that continues the previous shot also needs the same video
// before it, with the same end.
import { clamp } from '../components/text.js';
import { findNamedCharacters, plainName } from './character_names.js';

export const USUAL_SECONDS = 2; // the timeline draws a shot without its own length with this length

/** @typedef {import('./character_names.js').Figure} Figure */
/** @typedef {import('./character_names.js').Picture} Picture */
/** The video of a shot. `first` is the first frame that the previous shot does not contain. `after` is the end that the shot
 * continued, from `endMark`. `kept`: the visitor keeps the video until the prompt changes. `recipe` is then the pair of `keptRecipe`.
 * @typedef {{job: string, frames: number, fps: number, first: number, video: string, poster: string,
 *   recipe: string | [number, string], after: string, kept?: boolean}} Made */
/** `start`: continues from the previous shot ("on"), starts from its prompt ("cut") or from an image ("image"). `fade` and `trim`
 * are in seconds.
 * @typedef {{id: string, prompt: string, seconds: string, seed: string, start: string, image: Picture | null, fade: number,
 *   trim: [number, number] | null, made: Made | null}} Shot */
/** @typedef {{path: string, name?: string, start: number, fade: number, volume: number}} Track */
/** @typedef {{shots: Shot[], figures: Figure[], track: Track | null}} Film */

/** @param {Film} film @param {string | null} id */
export const indexOfShot = (film, id) => film.shots.findIndex(shot => shot.id === id);

/** @param {Film} film @param {Shot} shot */
const isFirst = (film, shot) => film.shots[0] === shot;

/** Returns whether a shot continues from the previous shot. @param {Film} film @param {Shot} shot */
export const continues = (film, shot) => shot.start === 'on' && !isFirst(film, shot);

/** Returns the settings that determine a shot's video, as text. @param {Film} film @param {Shot} shot */
export const shotRecipe = (film, shot) => {
  const start = continues(film, shot) ? 'on' : shot.start === 'image' ? shot.image?.path : 'cut';
  const pictures = findNamedCharacters(shot.prompt, film.figures).map(figure => figure.image?.path ?? '');
  return JSON.stringify([shot.prompt, shot.seconds, shot.seed, start, ...(pictures.length ? [pictures] : [])]);
};

/** Returns the recipe of a video that the visitor keeps. @param {string} prompt @returns {[number, string]} */
export const keptRecipe = prompt => [0, prompt];

export const startSeconds = (/** @type {Shot & {made: Made}} */ { trim, made }) => (trim ? trim[0] : made.first / made.fps);

export const endSeconds = (/** @type {Shot & {made: Made}} */ { trim, made }) => (trim ? trim[1] : made.frames / made.fps);

/** Returns a text that identifies the end of a kept shot's video, "" for other shots. @param {Film} film @param {Shot | undefined} shot */
export const endMark = (film, shot) => (shot && isKept(film, shot) ? `${shot.made.job}@${endSeconds(shot).toFixed(3)}` : '');

/** Returns whether a shot's video is used unchanged. @param {Film} film @param {Shot} shot @returns {shot is Shot & {made: Made}} */
export const isKept = (film, shot) => {
  const { made } = shot;
  if (!made) return false;
  if (made.kept) return made.recipe[1] === shot.prompt;
  if (made.recipe !== shotRecipe(film, shot)) return false;
  return !continues(film, shot) || made.after === endMark(film, film.shots[indexOfShot(film, shot.id) - 1]);
};

/** Returns a shot's length in seconds, null if the form determines it. @param {Film} film @param {Shot} shot */
export const knownSeconds = (film, shot) =>
  isKept(film, shot) ? Math.max(0.01, endSeconds(shot) - startSeconds(shot)) : Number(shot.seconds) || null;

/** Returns the length in seconds with which a shot is drawn. @param {Film} film @param {Shot} shot */
export const drawnSeconds = (film, shot) => knownSeconds(film, shot) ?? USUAL_SECONDS;

/** Returns the seconds of the fade between the previous shot and a shot. @param {Film} film @param {Shot} shot */
export const fadeSeconds = (film, shot) =>
  isFirst(film, shot) || (continues(film, shot) && !isKept(film, shot)) ? 0 : Number(shot.fade) || 0;

/** @param {Film} film */
export const totalSeconds = film => film.shots.reduce((sum, shot) => sum + drawnSeconds(film, shot) - fadeSeconds(film, shot), 0);

/** Returns the start of each shot, in seconds from the start of the film. @param {Film} film */
export const startTimes = film => {
  let time = 0;
  return film.shots.map(shot => {
    const start = time - fadeSeconds(film, shot);
    time = start + drawnSeconds(film, shot);
    return start;
  });
};

/** Returns a shot as the server reads it. A kept shot is named by its job. @param {Film} film @param {Shot} shot */
const shotRow = (film, shot) => {
  const { prompt, seconds, seed, start, image } = shot;
  const fade = fadeSeconds(film, shot);
  if (isKept(film, shot)) {
    const { made } = shot;
    const trim = (shot.trim || made.first > 0) && { trim: [startSeconds(shot), endSeconds(shot)] };
    return { job: made.job, num_frames: made.frames, fps: made.fps, prompt, cut: start !== 'on', fade, ...trim };
  }
  const picture = start === 'image' && image && { image: image.path };
  return { prompt: prompt.trim(), seconds, seed, cut: start === 'cut' && !isFirst(film, shot), fade, ...picture };
};

/** Returns the text that the form sends: the whole film, or the shot `alone` with the shot that it continues.
 * @param {Film} film @param {string | null} alone A shot's id.
 * @param {number} maxCharacters How many characters the selected model can show in a shot. */
export const filmText = (film, alone, maxCharacters) => {
  const at = indexOfShot(film, alone);
  const shots = alone === null ? film.shots : film.shots.slice(continues(film, film.shots[at]) ? at - 1 : at, at + 1);
  const rows = shots.map(shot => shotRow(film, shot));
  if (rows.length) rows[0].fade = 0;
  const figures = film.figures.map(({ name, image }) => ({ name: plainName(name), image: image?.path ?? null }));
  const cast = maxCharacters > 0 && figures.length > 0 && { figures };
  const track = alone === null ? film.track : null;
  const sound = track && { track: track.path, track_start: track.start, track_fade: track.fade, track_volume: track.volume };
  return JSON.stringify({ shots: rows, blocks: shots.map(shot => shot.id), ...cast, ...sound });
};

/** Returns the numbers, from 1, of the shots to generate, and of the shots that are regenerated because the previous shot changed.
 * @param {Film} film */
export const shotsToMake = film => {
  /** @param {(shot: Shot) => boolean} is */
  const numbers = is => film.shots.flatMap((shot, index) => (is(shot) ? [index + 1] : []));
  return {
    toMake: numbers(shot => !isKept(film, shot)),
    becauseOfBefore: numbers(shot => shot.made !== null && !isKept(film, shot) && shot.made.recipe === shotRecipe(film, shot)),
  };
};

/** Returns the soundtrack's volume, from 0 to 1, `time` seconds after its start and `left` seconds before its end. @param {Track} track @param {number} time @param {number} left */
export const trackVolume = (track, time, left) =>
  Math.min(1, track.volume) * (track.fade ? clamp(Math.min(time, left) / track.fade, 0, 1) : 1);
