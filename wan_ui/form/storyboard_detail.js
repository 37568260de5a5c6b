// The fields of the selected shot, and the actions on shots by pointer, keys and buttons.
import { on, onFiles } from '../components/dom.js';
import { addressOf } from '../components/http.js';
import { clamp, fill } from '../components/text.js';
import { continues, endSeconds, indexOfShot, isKept, keptRecipe, startSeconds, USUAL_SECONDS } from './storyboard_shots.js';

const MOST_FADE = 2; // seconds

/** @typedef {import('./storyboard_shots.js').Shot} Shot */
/** The operations that the parts of the timeline share.
 * @typedef {{film: import('./storyboard.js').State, change: () => void, draw: () => void, maxCharacters: () => number,
 *   insert: (at: number, given: Partial<Shot>) => void, move: (id: string, to: number) => void, makeAlone: (id: string) => void}} Editing
 */

const rounded = (/** @type {number} */ value) => Math.round(1000 * value) / 1000;

const copyOf = (/** @type {Shot} */ { prompt, seconds, seed, image }) => ({ prompt, seconds, seed, image });

/** @param {ViewClient} client @param {Editing} editing @param {{names: (prompt: string) => string}} characters */
export const createShotFields = (client, { film, change, draw, insert, move, makeAlone }, characters) => {
  const { element, words, one, upload } = client;
  const chosen = () => film.shots[indexOfShot(film, film.chosen)];

  const field = (/** @type {string} */ name) => /** @type {Field} */ (one(`.shot-detail [name="${name}"]`));
  const labelOf = (/** @type {string} */ name) => /** @type {HTMLElement} */ (field(name).closest('label'));
  const button = (/** @type {string} */ what) => client.button(`.shot-detail [data-shot=${what}]`);

  const show = () => {
    const shot = chosen();
    one('.shot-detail').hidden = !shot;
    if (!shot) return;
    const index = indexOfShot(film, shot.id);
    const kept = isKept(film, shot) ? shot : null;
    one('.shot-detail legend').textContent = fill(words().number, { index: index + 1 });
    const values = {
      prompt: shot.prompt,
      start: index === 0 && shot.start === 'on' ? 'cut' : shot.start, // the first shot has no previous shot
      seconds: shot.seconds,
      seed: shot.seed,
      fade: shot.fade || '',
      from: kept ? rounded(startSeconds(kept)) : '',
      to: kept ? rounded(endSeconds(kept)) : '',
    };
    /** @type {HTMLOptionElement} */ (one('.shot-detail option[value=on]')).disabled = index === 0;
    for (const [name, value] of Object.entries(values))
      if (field(name) !== document.activeElement) field(name).value = String(value);
    one('.shot-picture').hidden = shot.start !== 'image';
    const picture = client.image('.shot-picture img');
    if (shot.image) picture.src = shot.image.url;
    picture.hidden = !shot.image;
    labelOf('fade').hidden = index === 0 || (shot.start === 'on' && !kept);
    for (const name of ['from', 'to']) labelOf(name).hidden = !kept;
    for (const name of ['seconds', 'seed']) labelOf(name).hidden = kept?.made.kept === true;
    const cast = one('.shot-figures');
    const names = characters.names(shot.prompt);
    cast.hidden = !film.figures.length || kept !== null;
    cast.textContent = names ? fill(words().characters, { names }) : words().no_characters;
    button('keep').hidden = !shot.made || kept !== null;
    button('alone').hidden = continues(film, shot) && !isKept(film, film.shots[index - 1]);
    button('up').disabled = index === 0;
    button('down').disabled = index === film.shots.length - 1;
  };

  on(element, 'input', '.shot-detail [name]:not([type=file])', (/** @type {Field} */ { name, value }) => {
    const shot = chosen();
    if (!shot) return;
    if (shot.made && (name === 'from' || name === 'to')) {
      const end = shot.made.frames / shot.made.fps;
      const frame = 1 / shot.made.fps;
      const from = clamp(Number(field('from').value) || 0, 0, end - frame);
      shot.trim = [from, clamp(Number(field('to').value) || end, from + frame, end)];
    } else Object.assign(shot, { [name]: name === 'fade' ? clamp(Number(value) || 0, 0, MOST_FADE) : value });
    change();
  });
  onFiles(element, '[name="image"]', async ([file]) => {
    const shot = chosen();
    const path = shot && (await upload(file));
    if (!path) return;
    shot.image = { path, url: addressOf(path), name: file.name };
    change();
  });
  on(element, 'change', '.shot-detail', show);

  /** The actions of the buttons. @type {Record<string, (shot: Shot, index: number) => void>} */
  const acts = {
    /** Splits a shot: its video into two parts, or its length into two halves. */
    split: (shot, index) => {
      if (!isKept(film, shot)) {
        shot.seconds = String(rounded((Number(shot.seconds) || USUAL_SECONDS) / 2));
        return insert(index + 1, { prompt: shot.prompt, seconds: shot.seconds });
      }
      const { fps } = shot.made;
      const [from, to] = [startSeconds(shot), endSeconds(shot)];
      const middle = Math.round(((from + to) / 2) * fps) / fps;
      if (middle <= from || middle >= to) return;
      shot.trim = [from, middle];
      const made = { ...shot.made, kept: true, recipe: keptRecipe(shot.prompt) };
      insert(index + 1, { ...copyOf(shot), start: 'on', fade: 0, trim: [middle, to], made });
    },
    double: (shot, index) => {
      const start = index === 0 && shot.start === 'on' ? 'cut' : shot.start;
      const made = isKept(film, shot) && (start !== 'on' || shot.made.kept) ? { ...shot.made } : null;
      insert(index + 1, { ...copyOf(shot), start, fade: shot.fade, trim: made ? shot.trim : null, made });
    },
    remove: (_, index) => {
      film.shots.splice(index, 1);
      film.chosen = film.shots[Math.min(index, film.shots.length - 1)]?.id ?? null;
      change();
    },
    keep: shot => {
      if (shot.made) shot.made = { ...shot.made, kept: true, recipe: keptRecipe(shot.prompt) };
      change();
    },
    alone: shot => makeAlone(shot.id),
    up: (shot, index) => move(shot.id, index - 1),
    down: (shot, index) => move(shot.id, index + 1),
  };
  on(element, 'click', '[data-shot]', pressed => {
    const what = pressed.dataset.shot ?? '';
    if (what === 'add') {
      insert(film.shots.length, {});
      field('prompt').focus();
    }
    const shot = chosen();
    if (shot) acts[what]?.(shot, indexOfShot(film, shot.id));
    if (['up', 'down'].includes(what)) pressed.focus();
  });
  const choose = (/** @type {string} */ id) => {
    film.chosen = id;
    draw();
  };
  on(element, 'click', '.film-block', ({ dataset }) => {
    if (!wasDragged) choose(dataset.id ?? '');
  });
  on(element, 'keydown', '.film-block', ({ dataset: { id = '' } }, event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = indexOfShot(film, id);
    if (event.altKey) return move(id, at + step);
    const next = film.shots[at + step];
    if (!next) return;
    choose(next.id);
    one(`[data-id="${next.id}"]`).focus();
  });

  // A mouse or a pen drags a block. A finger scrolls the timeline; touch users move shots with buttons.
  /** @type {{id: string, x: number, item: HTMLElement, to: number | null} | null} */
  let held = null;
  let wasDragged = false;
  on(element, 'pointerdown', '*', (target, event) => {
    /** @type {HTMLElement | null} */
    const block = target.closest('.film-block');
    const item = block?.closest('li');
    wasDragged = false;
    if (!block || !item || event.pointerType === 'touch' || event.button !== 0) return;
    held = { id: block.dataset.id ?? '', x: event.clientX, item, to: null };
  });
  window.addEventListener('pointermove', event => {
    if (!held) return;
    const { item, x } = held;
    const by = event.clientX - x;
    if (!wasDragged && Math.abs(by) < 6) return;
    wasDragged = true;
    item.classList.add('held');
    item.style.transform = `translateX(${by}px)`;
    const middleOf = (/** @type {HTMLElement} */ block) => {
      const { left, width } = block.getBoundingClientRect();
      return left + width / 2;
    };
    const others = /** @type {HTMLElement[]} */ ([...one('.film').children].filter(other => other !== item));
    const to = others.filter(other => middleOf(other) < middleOf(item)).length;
    held.to = to;
    for (const [index, { dataset }] of others.entries()) dataset.gap = String(index === to);
  });
  const release = () => {
    if (!held) return;
    const { id, item, to } = held;
    held = null;
    item.classList.remove('held');
    item.style.transform = '';
    if (!wasDragged || to === null) return;
    film.chosen = id;
    if (to === indexOfShot(film, id)) draw();
    else move(id, to);
  };
  for (const kind of ['pointerup', 'pointercancel', 'blur']) window.addEventListener(kind, release);

  return { show };
};
