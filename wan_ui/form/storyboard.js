// The storyboard as a timeline of shots with a soundtrack. Each change is written as JSON into the field that the form sends. An empty
// field means no storyboard.
import { create, find, on, onFirst } from '../components/dom.js';
import { addressOf, createViewClient } from '../components/http.js';
import { clamp, fill } from '../components/text.js';
import { createCharacters } from './storyboard_characters.js';
import { createShotFields } from './storyboard_detail.js';
import { createFinishedShots } from './storyboard_made.js';
import { startStoryboardPlayer } from './storyboard_play.js';
import { drawnSeconds, fadeSeconds, filmText, isKept, keptRecipe, knownSeconds, shotsToMake } from './storyboard_shots.js';
import { createSoundtrack } from './storyboard_track.js';

const STORAGE_KEY = 'studio-film';

/** @typedef {import('./storyboard_shots.js').Shot} Shot */
/** `chosen` is the id of the selected shot. `jobs` are the jobs that generate shots.
 * @typedef {import('./storyboard_shots.js').Film
 *   & {isOn: boolean, chosen: string | null, jobs: import('./storyboard_made.js').SentJob[]}} State */

/** @param {Partial<Shot>} [given] @returns {Shot} */
const newShot = given => {
  const id = Math.random().toString(36).slice(2, 10).padEnd(8, '0');
  return { id, prompt: '', seconds: '', seed: '', start: 'on', image: null, fade: 0, trim: null, made: null, ...given };
};

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

export const startStoryboard = (/** @type {GradioComponent} */ { element, watch }) => {
  const client = createViewClient(element, 'shots');
  const { words, one, input } = client;
  /** @type {State} */
  const film = { isOn: false, shots: [], figures: [], track: null, chosen: null, jobs: [] };
  /** The shot to generate without the other shots. @type {string | null} */
  let singleShot = null;

  const text = () => (film.isOn ? filmText(film, singleShot, maxCharacters) : '');
  const field = () => /** @type {Field | null} */ (find('#shots textarea, #shots input'));
  /** Writes the storyboard into the form and the browser, because the server does not store which videos the shots have. */
  const write = () => {
    one('.shots').dataset.on = String(film.isOn);
    const target = field();
    const now = text();
    if (target && target.value !== now) {
      target.value = now;
      target.dispatchEvent(new Event('input', { bubbles: true }));
    }
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
    const shortest = Math.min(...film.shots.map(shot => drawnSeconds(film, shot)));
    const scale = clamp(92 / shortest, 46, 110); // pixels per second
    list.replaceChildren(
      ...film.shots.map((shot, index) => {
        const item = create('li', {}, createBlock(shot, index));
        item.style.width = `${Math.max(76, drawnSeconds(film, shot) * scale)}px`;
        return item;
      }),
    );
    if (focused) find(`[data-id="${focused}"]`, list)?.focus({ preventScroll: true });
    detail.show();
    characters.show();
    track.show();
    const { toMake, becauseOfBefore } = shotsToMake(film);
    let first = '';
    if (!film.shots.length) first = words().empty;
    else if (!toMake.length) first = words().all_finished;
    else if (toMake.length < film.shots.length) first = fill(words().to_generate, { shots: toMake.join(', ') });
    const second = becauseOfBefore.length ? fill(words().regenerated, { shots: becauseOfBefore.join(', ') }) : '';
    one('.film-state').textContent = `${first} ${second}`.trim();
  };
  /** @param {Shot} shot @param {number} index */
  const createBlock = (shot, index) => {
    const isMade = isKept(film, shot);
    const length = knownSeconds(film, shot)?.toFixed(1) ?? '';
    const names = characters.names(shot.prompt);
    const picture = isMade ? shot.made.poster : shot.start === 'image' ? shot.image?.url : '';
    const joint = index === 0 ? 'first' : fadeSeconds(film, shot) ? 'fade' : shot.start;
    const label = [
      fill(words().number, { index: index + 1 }),
      length && fill(words().seconds, { seconds: length }),
      shot.prompt,
      names && fill(words().characters, { names }),
      isMade ? words().finished : words().unfinished,
    ];
    const block = create(
      'button',
      { type: 'button', className: 'film-block', dataset: { id: shot.id, made: String(isMade), joint } },
      create('b', { textContent: String(index + 1), ariaHidden: 'true' }),
      create('i', { textContent: picture ? '' : shot.prompt, ariaHidden: 'true' }),
      create('span', { textContent: length && `${length} s`, ariaHidden: 'true' }),
      ...characters.faces(shot.prompt),
    );
    block.setAttribute('aria-label', label.filter(Boolean).join(', '));
    block.setAttribute('aria-pressed', String(shot.id === film.chosen));
    if (picture) {
      const image = create('img', { src: picture, alt: '', draggable: false });
      block.prepend(image);
      image.addEventListener('error', async () => {
        const answer = isMade ? await fetch(picture).catch(() => null) : null;
        if (answer?.status !== 404) return;
        shot.made = shot.trim = null; // the video was deleted
        change();
      });
    }
    return block;
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
      const from = film.shots.findIndex(shot => shot.id === id);
      const place = clamp(to, 0, film.shots.length - 1);
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
    const ids = film.shots.map(shot => shot.id);
    if (given.job) made.follow(given.job, ids, true);
    track.load();
    change();
    if (film.jobs.length) made.poll();
    characters.refresh();
  };
  /** Converts a storyboard from the server. @param {Record<string, any>} given */
  const readStoryboard = given => {
    const picture = (/** @type {string | null | undefined} */ path) => (path ? { path, url: addressOf(path) } : null);
    const { track: path, track_start: start, track_fade: fade, track_volume: volume, figures = [] } = given;
    return {
      shots: given.shots.map((/** @type {any} */ { cut, image, ...shot }) =>
        newShot({ ...shot, seed: String(shot.seed ?? ''), start: image ? 'image' : cut ? 'cut' : 'on', image: picture(image) }),
      ),
      figures: figures.map((/** @type {any} */ { name, image }) => ({ name, image: picture(image) })),
      track: path ? { path, start: start ?? 0, fade: fade ?? 0, volume: volume ?? 1 } : null,
      jobs: [],
    };
  };
  const changeAll = () => {
    change();
    characters.refresh();
  };
  on(element, 'input', '.shots-switch', () => {
    film.isOn = input('.shots-switch input').checked;
    if (film.isOn && !film.shots.length) {
      const prompt = /** @type {Field | null} */ (find('#prompt textarea'))?.value ?? '';
      film.shots = [newShot({ prompt }), newShot()];
      film.chosen = film.shots[0].id;
    }
    changeAll();
  });

  // "Add to storyboard" adds a finished video of the stage or the library as a shot.
  on(document, 'click', '[data-take]', button => {
    if (!element.isConnected) return;
    const { prompt, ...video } = JSON.parse(button.dataset.take ?? '');
    const shot = newShot({ prompt, start: 'cut', made: { ...video, after: '', kept: true, recipe: keptRecipe(prompt) } });
    film.shots.push(shot);
    film.chosen = shot.id;
    film.isOn = input('.shots-switch input').checked = true;
    changeAll();
  });

  // Generate sends all shots, or one shot with the shot that it continues. Gradio must receive the field's text before the click.
  // Therefore this listener stops the click, writes the field, and presses the button again.
  let isForwarding = false;
  onFirst(document, 'click', '#generate', (button, event) => {
    if (!film.isOn || isForwarding || !element.isConnected) return;
    if (singleShot === null && field()?.value === text()) return;
    event.stopImmediatePropagation();
    event.preventDefault();
    write();
    setTimeout(() => {
      isForwarding = true;
      button.click();
      isForwarding = false;
      setTimeout(() => {
        singleShot = null;
      });
    }, 120);
  });

  charactersChanged = () => {
    if (element.isConnected && one('.shots').dataset.drawn) changeAll();
  };
  jobSent = made.follow;
  watch('value', open);
  open();
};
