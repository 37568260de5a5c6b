// The storyboard: its shots in their order and the sound below, as a timeline. Each change is written as JSON into the field that the
// form sends; an empty field is no storyboard.
import { find, on } from '../components/dom.js';
import { addressOf, createViewClient } from '../components/http.js';
import { fill } from '../components/text.js';
import { createFigures } from './storyboard_characters.js';
import { createDetail } from './storyboard_detail.js';
import { createMade } from './storyboard_made.js';
import { startFilmPlayer } from './storyboard_play.js';
import {
  fadeOf,
  filmText,
  isFirst,
  isKept,
  keptRecipe,
  knownSeconds,
  placeOf,
  secondsOf,
  shotsToMake,
  USUAL_SECONDS,
} from './storyboard_shots.js';
import { createTrack } from './storyboard_track.js';

const KEPT = 'studio-film';

/** @typedef {import('./storyboard_shots.js').Shot} Shot */
/** @typedef {import('./storyboard_shots.js').Made} Made */
/** @typedef {import('./storyboard_made.js').SentJob} SentJob */
/**
 * `chosen` is a shot's id; `jobs` are those that the shots were sent to.
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

// What the server says beside the timeline, for the one that is shown.
let mostFigures = 0;
/** @type {(() => void) | null} */
let figuresChanged = null;
/** @type {((job: string, ids: string[]) => void) | null} */
let jobSent = null;

/** Reads how many figures a shot of the chosen model can show. @param {GradioComponent} component */
export const startFilmFigures = ({ props, watch }) => {
  const read = () => {
    mostFigures = Number(/data-most="(\d+)"/.exec(props.value ?? '')?.[1] ?? 0);
    figuresChanged?.();
  };
  watch('value', read);
  read();
};

/** Reads to which job the shots were sent. @param {GradioComponent} component */
export const startFilmSent = ({ props, watch }) => {
  watch('value', () => {
    const [, job, ids] = /data-job="([^"]+)" data-blocks="([^"]*)"/.exec(props.value ?? '') ?? [];
    if (job) jobSent?.(job, ids.split(',').filter(Boolean));
  });
};

/** @param {GradioComponent} component */
export const startFilm = ({ element, watch }) => {
  const client = createViewClient(element, 'shots');
  const { words, one, input } = client;
  /** @type {State} */
  const film = { isOn: false, shots: [], figures: [], track: null, chosen: null, jobs: [] };
  /** The shot that is made without the others. @type {string | null} */
  let alone = null;

  const text = () => (film.isOn ? filmText(film, alone, mostFigures) : '');
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
  /** Keeps in the browser what the server does not: which videos the shots are. */
  const remember = () => {
    if (!film.shots.length) return;
    const { shots, figures, track, jobs } = film;
    try {
      localStorage.setItem(KEPT, JSON.stringify({ shots, figures, track, jobs }));
    } catch {
      // It is not there after a reload.
    }
  };
  /** What was kept of a film with these prompts. @param {string[]} prompts */
  const remembered = prompts => {
    try {
      const kept = JSON.parse(localStorage.getItem(KEPT) ?? 'null');
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
    const shortest = Math.min(...film.shots.map(shot => secondsOf(film, shot)), USUAL_SECONDS);
    const scale = Math.min(110, Math.max(26, 92 / shortest));
    list.replaceChildren(...film.shots.map((shot, index) => drawn(shot, index, scale)));
    if (focused) find(`[data-id="${focused}"]`, list)?.focus({ preventScroll: true });
    detail.show();
    figures.show();
    track.show();
    showState();
  };
  /** @param {Shot} shot @param {number} index @param {number} scale Pixels a second. */
  const drawn = (shot, index, scale) => {
    const item = document.createElement('li');
    const isMade = isKept(film, shot);
    const length = knownSeconds(film, shot)?.toFixed(1) ?? '';
    const names = figures.names(shot.prompt);
    const button = Object.assign(document.createElement('button'), { type: 'button', className: 'film-block' });
    button.dataset.id = shot.id;
    button.dataset.made = String(isMade);
    button.dataset.joint = isFirst(film, shot) ? 'first' : fadeOf(film, shot) ? 'fade' : shot.start;
    item.style.width = `${Math.max(76, secondsOf(film, shot) * scale)}px`;
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
    button.append(number, caption, seconds, ...figures.faces(shot.prompt));
    item.append(button);
    return item;
  };
  /** A shot whose video was deleted must be made again. @param {Shot} shot @param {string} address */
  const forgetIfDeleted = async (shot, address) => {
    try {
      if ((await fetch(address)).status !== 404) return;
    } catch {
      return;
    }
    shot.made = shot.trim = null;
    change();
  };
  /** Says what Generate will do. */
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
    /** Adds a shot and chooses it. @param {number} at @param {Partial<Shot>} given */
    insert: (at, given) => {
      const shot = newShot(given);
      film.shots.splice(at, 0, shot);
      film.chosen = shot.id;
      change();
      find(`[data-id="${shot.id}"]`, element)?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
    },
    /** @param {string} id @param {number} to */
    move: (id, to) => {
      const from = placeOf(film, id);
      const place = Math.min(film.shots.length - 1, Math.max(0, to));
      if (from < 0 || place === from) return;
      const first = film.shots[0];
      if (first.start === 'on' && isKept(film, first)) first.start = 'cut'; // it continued from nothing, wherever it goes
      film.shots.splice(place, 0, ...film.shots.splice(from, 1));
      change();
    },
    /** Generates one shot. @param {string} id */
    makeAlone: id => {
      alone = id;
      find('#generate')?.click();
    },
    mostFigures: () => mostFigures,
  };
  const figures = createFigures(client, editing);
  const detail = createDetail(client, editing, figures);
  const track = createTrack(client, editing);
  const made = createMade(client, editing);
  startFilmPlayer(client, film);

  /** The page was opened, or the shots of a request are shown. */
  const open = () => {
    const root = one('.shots');
    if (root.dataset.drawn) return;
    root.dataset.drawn = 'true';
    const given = JSON.parse(root.dataset.film || '{"shots": []}');
    const prompts = given.shots.map((/** @type {Shot} */ shot) => shot.prompt);
    const shown = (!given.job && remembered(prompts)) || read(given);
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
    if (film.jobs.length) made.look();
    figures.look();
  };
  /** A film as the server sends it. @param {Record<string, any>} given */
  const read = given => {
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
  const turn = () => {
    film.isOn = input('.shots-switch input').checked;
    if (film.isOn && !film.shots.length) {
      const prompt = document.querySelector('#prompt textarea');
      film.shots = [newShot({ prompt: prompt instanceof HTMLTextAreaElement ? prompt.value : '' }), newShot()];
      film.chosen = film.shots[0].id;
    }
    change();
    figures.look();
  };
  on(element, 'input', target => {
    if (target.closest('.shots-switch')) turn();
  });

  // A finished video of the stage or the library becomes a shot, whatever has made it.
  on(document, 'click', target => {
    const button = /** @type {HTMLElement | null} */ (target.closest('[data-take]'));
    if (!button || !element.isConnected) return;
    const { prompt, ...video } = JSON.parse(button.dataset.take ?? '');
    const shot = newShot({ prompt, start: 'cut', made: { ...video, after: '', kept: true, recipe: keptRecipe(prompt) } });
    film.shots.push(shot);
    film.chosen = shot.id;
    film.isOn = input('.shots-switch input').checked = true;
    change();
    figures.look();
  });

  // Generate sends all shots, or one alone with the shot from which it continues. What is written now must have reached Gradio
  // before the button is pressed.
  let isPassing = false;
  on(
    document,
    'click',
    (target, event) => {
      const button = target.closest('#generate');
      if (!(button instanceof HTMLElement) || !film.isOn || isPassing || !element.isConnected) return;
      if (alone === null && field()?.value === text()) return;
      event.stopImmediatePropagation();
      event.preventDefault();
      write();
      setTimeout(() => press(button), 120);
    },
    true,
  );
  /** @param {HTMLElement} button */
  const press = button => {
    isPassing = true;
    button.click();
    isPassing = false;
    setTimeout(() => {
      alone = null;
    }, 0);
  };

  figuresChanged = () => {
    if (element.isConnected && one('.shots').dataset.drawn) figures.follow();
  };
  jobSent = made.follow;
  watch('value', open);
  open();
};
