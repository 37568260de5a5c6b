// The storyboard as a timeline of shots with a soundtrack. Each change is written as JSON into the field that the form sends. An empty
// field means no storyboard.
import { find, on } from '../components/dom.js';
import { addressOf, createViewClient } from '../components/http.js';
import { fill } from '../components/text.js';
import { createCharacters } from './storyboard_characters.js';
import { createShotFields } from './storyboard_detail.js';
import { createFinishedShots } from './storyboard_made.js';
import { startStoryboardPlayer } from './storyboard_play.js';
import {
  drawnSeconds,
  fadeSeconds,
  filmText,
  indexOfShot,
  isFirst,
  isKept,
  keptRecipe,
  knownSeconds,
  shotsToMake,
  USUAL_SECONDS,
} from './storyboard_shots.js';
import { createSoundtrack } from './storyboard_track.js';

const STORAGE_KEY = 'studio-film';

/** @typedef {import('./storyboard_shots.js').Shot} Shot */
/** @typedef {import('./storyboard_shots.js').Made} Made */
/** @typedef {import('./storyboard_made.js').SentJob} SentJob */
/**
 * `chosen` is the id of the selected shot. `jobs` are the jobs that generate shots.
 * @typedef {import('./storyboard_shots.js').Film & {isOn: boolean, chosen: string | null, jobs: SentJob[]}} State
 */

const newId = () => Math.random().toString(36).slice(2, 10).padEnd(8, '0');

/** @param {Partial<Shot>} [given] @returns {Shot} */
const newShot = given => ({
  id: newId(),
  prompt: '',
  seconds: '',
  seed: '',
  start: 'on',
  image: null,
  fade: 0,
  trim: null,
  made: null,
  ...given,
});

// The components `film_figures` and `film_sent` pass values of the server to the timeline through these variables.
let maxCharacters = 0;
/** @type {(() => void) | null} */
let charactersChanged = null;
/** @type {((job: string, ids: string[]) => void) | null} */
let jobSent = null;

/** Reads the number of characters that a shot can show with the selected model. @param {GradioComponent} component */
export const startMaxCharacters = ({ props, watch }) => {
  const read = () => {
    maxCharacters = Number(/data-most="(\d+)"/.exec(props.value ?? '')?.[1] ?? 0);
    charactersChanged?.();
  };
  watch('value', read);
  read();
};

/** Reads the id of the job that generates the shots. @param {GradioComponent} component */
export const startSentJob = ({ props, watch }) => {
  watch('value', () => {
    const [, job, ids] = /data-job="([^"]+)" data-blocks="([^"]*)"/.exec(props.value ?? '') ?? [];
    if (job) jobSent?.(job, ids.split(',').filter(Boolean));
  });
};

/** @param {GradioComponent} component */
export const startStoryboard = ({ element, watch }) => {
  const client = createViewClient(element, 'shots');
  const { words, one, input } = client;
  /** @type {State} */
  const film = { isOn: false, shots: [], figures: [], track: null, chosen: null, jobs: [] };
  /** The shot to generate without the other shots. @type {string | null} */
  let singleShot = null;

  const text = () => (film.isOn ? filmText(film, singleShot, maxCharacters) : '');
  /** @returns {HTMLTextAreaElement | HTMLInputElement | null} */
  const field = () => document.querySelector('#shots textarea, #shots input');
  const write = () => {
    one('.shots').dataset.on = String(film.isOn);
    const target = field();
    const now = text();
    if (target && target.value !== now) {
      target.value = now;
      target.dispatchEvent(new Event('input', { bubbles: true }));
    }
    remember();
  };
  /** Stores the storyboard in the browser, because the server does not store which videos its shots have. */
  const remember = () => {
    if (!film.shots.length) return;
    const { shots, figures, track, jobs } = film;
    try {
      localStorage.setItem(STORAGE_KEY, JSON.stringify({ shots, figures, track, jobs }));
    } catch {
      // The storyboard is lost after a reload.
    }
  };
  /** Returns the stored storyboard with these prompts, or null. @param {string[]} prompts */
  const findRemembered = prompts => {
    try {
      const kept = JSON.parse(localStorage.getItem(STORAGE_KEY) ?? 'null');
      const own = kept?.shots.map((/** @type {Shot} */ shot) => shot.prompt.trim());
      return JSON.stringify(own) === JSON.stringify(prompts) ? kept : null;
    } catch {
      return null;
    }
  };

  const change = () => {
    draw();
    write();
  };
  const draw = () => {
    const list = one('.film');
    const active = document.activeElement;
    const focused = active instanceof HTMLElement && list.contains(active) ? active.dataset.id : null;
    const shortest = Math.min(...film.shots.map(shot => drawnSeconds(film, shot)), USUAL_SECONDS);
    const scale = Math.min(110, Math.max(26, 92 / shortest));
    list.replaceChildren(...film.shots.map((shot, index) => createBlock(shot, index, scale)));
    if (focused) find(`[data-id="${focused}"]`, list)?.focus({ preventScroll: true });
    detail.show();
    characters.show();
    track.show();
    showState();
  };
  /** @param {Shot} shot @param {number} index @param {number} scale Pixels per second. */
  const createBlock = (shot, index, scale) => {
    const item = document.createElement('li');
    const isMade = isKept(film, shot);
    const length = knownSeconds(film, shot)?.toFixed(1) ?? '';
    const names = characters.names(shot.prompt);
    const button = Object.assign(document.createElement('button'), { type: 'button', className: 'film-block' });
    button.dataset.id = shot.id;
    button.dataset.made = String(isMade);
    button.dataset.joint = isFirst(film, shot) ? 'first' : fadeSeconds(film, shot) ? 'fade' : shot.start;
    item.style.width = `${Math.max(76, drawnSeconds(film, shot) * scale)}px`;
    const label = [
      fill(words().number, { index: index + 1 }),
      length && fill(words().seconds, { seconds: length }),
      shot.prompt,
      names && fill(words().characters, { names }),
      isMade ? words().finished : words().unfinished,
    ];
    button.setAttribute('aria-label', label.filter(Boolean).join(', '));
    button.setAttribute('aria-pressed', String(shot.id === film.chosen));
    const picture = isMade ? shot.made.poster : shot.start === 'image' ? shot.image?.url : '';
    if (picture) {
      const image = Object.assign(new Image(), { src: picture, alt: '', draggable: false });
      if (isMade) image.addEventListener('error', () => forgetIfDeleted(shot, picture));
      button.append(image);
    }
    const number = Object.assign(document.createElement('b'), { textContent: String(index + 1), ariaHidden: 'true' });
    const caption = Object.assign(document.createElement('i'), { textContent: picture ? '' : shot.prompt, ariaHidden: 'true' });
    const seconds = Object.assign(document.createElement('span'), { textContent: length && `${length} s`, ariaHidden: 'true' });
    button.append(number, caption, seconds, ...characters.faces(shot.prompt));
    item.append(button);
    return item;
  };
  /** Marks a shot as unfinished if its video was deleted. @param {Shot} shot @param {string} address */
  const forgetIfDeleted = async (shot, address) => {
    try {
      if ((await fetch(address)).status !== 404) return;
    } catch {
      return;
    }
    shot.made = shot.trim = null;
    change();
  };
  /** Shows which shots Generate will generate. */
  const showState = () => {
    const { toMake, becauseOfBefore } = shotsToMake(film);
    let first = '';
    if (!film.shots.length) first = words().empty;
    else if (!toMake.length) first = words().all_finished;
    else if (toMake.length < film.shots.length) first = fill(words().to_generate, { shots: toMake.join(', ') });
    const second = becauseOfBefore.length ? fill(words().regenerated, { shots: becauseOfBefore.join(', ') }) : '';
    one('.film-state').textContent = `${first} ${second}`.trim();
  };

  const editing = {
    film,
    change,
    draw,
    /** Adds a shot and selects it. @param {number} at @param {Partial<Shot>} given */
    insert: (at, given) => {
      const shot = newShot(given);
      film.shots.splice(at, 0, shot);
      film.chosen = shot.id;
      change();
      find(`[data-id="${shot.id}"]`, element)?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
    },
    /** @param {string} id @param {number} to */
    move: (id, to) => {
      const from = indexOfShot(film, id);
      const place = Math.min(film.shots.length - 1, Math.max(0, to));
      if (from < 0 || place === from) return;
      const first = film.shots[0];
      if (first.start === 'on' && isKept(film, first)) first.start = 'cut'; // a first shot starts from its prompt
      film.shots.splice(place, 0, ...film.shots.splice(from, 1));
      change();
    },
    /** Generates one shot. @param {string} id */
    makeAlone: id => {
      singleShot = id;
      find('#generate')?.click();
    },
    maxCharacters: () => maxCharacters,
  };
  const characters = createCharacters(client, editing);
  const detail = createShotFields(client, editing, characters);
  const track = createSoundtrack(client, editing);
  const made = createFinishedShots(client, editing);
  startStoryboardPlayer(client, film);

  /** Shows the timeline after the page has opened, or the shots of a request. */
  const open = () => {
    const root = one('.shots');
    if (root.dataset.drawn) return;
    root.dataset.drawn = 'true';
    const given = JSON.parse(root.dataset.film || '{"shots": []}');
    const prompts = given.shots.map((/** @type {Shot} */ shot) => shot.prompt);
    const shown = (!given.job && findRemembered(prompts)) || readStoryboard(given);
    Object.assign(film, shown, { isOn: given.shots.length > 0, figures: shown.figures ?? [] });
    film.chosen = film.shots[0]?.id ?? null;
    if (given.job)
      made.follow(
        given.job,
        film.shots.map(shot => shot.id),
        true,
      );
    track.load();
    change();
    if (film.jobs.length) made.poll();
    characters.refresh();
  };
  /** Converts a storyboard from the server. @param {Record<string, any>} given */
  const readStoryboard = given => {
    /** @param {string | null | undefined} path */
    const picture = path => (path ? { path, url: addressOf(path) } : null);
    return {
      shots: given.shots.map((/** @type {any} */ { cut, image, ...shot }) =>
        newShot({ ...shot, seed: String(shot.seed ?? ''), start: image ? 'image' : cut ? 'cut' : 'on', image: picture(image) }),
      ),
      figures: (given.figures ?? []).map((/** @type {any} */ { name, image }) => ({ name, image: picture(image) })),
      track: given.track
        ? { path: given.track, start: given.track_start ?? 0, fade: given.track_fade ?? 0, volume: given.track_volume ?? 1 }
        : null,
      jobs: [],
    };
  };
  const switchStoryboard = () => {
    film.isOn = input('.shots-switch input').checked;
    if (film.isOn && !film.shots.length) {
      const prompt = document.querySelector('#prompt textarea');
      film.shots = [newShot({ prompt: prompt instanceof HTMLTextAreaElement ? prompt.value : '' }), newShot()];
      film.chosen = film.shots[0].id;
    }
    change();
    characters.refresh();
  };
  on(element, 'input', target => {
    if (target.closest('.shots-switch')) switchStoryboard();
  });

  // "Add to storyboard" adds a finished video of the stage or the library as a shot.
  on(document, 'click', target => {
    const button = /** @type {HTMLElement | null} */ (target.closest('[data-take]'));
    if (!button || !element.isConnected) return;
    const { prompt, ...video } = JSON.parse(button.dataset.take ?? '');
    const shot = newShot({ prompt, start: 'cut', made: { ...video, after: '', kept: true, recipe: keptRecipe(prompt) } });
    film.shots.push(shot);
    film.chosen = shot.id;
    film.isOn = input('.shots-switch input').checked = true;
    change();
    characters.refresh();
  });

  // Generate sends all shots, or one shot with the shot that it continues. Gradio must receive the field's text before the click.
  // Therefore this listener stops the click, writes the field, and presses the button again.
  let isForwarding = false;
  on(
    document,
    'click',
    (target, event) => {
      const button = target.closest('#generate');
      if (!(button instanceof HTMLElement) || !film.isOn || isForwarding || !element.isConnected) return;
      if (singleShot === null && field()?.value === text()) return;
      event.stopImmediatePropagation();
      event.preventDefault();
      write();
      setTimeout(() => press(button), 120);
    },
    true,
  );
  /** @param {HTMLElement} button */
  const press = button => {
    isForwarding = true;
    button.click();
    isForwarding = false;
    setTimeout(() => {
      singleShot = null;
    }, 0);
  };

  charactersChanged = () => {
    if (element.isConnected && one('.shots').dataset.drawn) characters.showModel();
  };
  jobSent = made.follow;
  watch('value', open);
  open();
};
