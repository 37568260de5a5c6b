// The fields of the selected shot, and the actions on shots by pointer, keys and buttons.
import { fieldValue, filesOf, on } from '../components/dom.js';
import { addressOf } from '../components/http.js';
import { clamp, fill } from '../components/text.js';
import {
  continues,
  endSeconds,
  indexOfShot,
  isFirst,
  isKept,
  keptRecipe,
  startSeconds,
  USUAL_SECONDS,
} from './storyboard_shots.js';

const MOST_FADE = 2; // seconds

/** @typedef {import('./storyboard_shots.js').Shot} Shot */
/**
 * The operations that the parts of the timeline share.
 * @typedef {object} Editing
 * @property {import('./storyboard.js').State} film
 * @property {() => void} change
 * @property {() => void} draw
 * @property {(at: number, given: Partial<Shot>) => void} insert
 * @property {(id: string, to: number) => void} move
 * @property {(id: string) => void} makeAlone
 * @property {() => number} maxCharacters
 */

/** @param {number} value */
const rounded = value => Math.round(1000 * value) / 1000;

/** @param {Shot} shot */
const copyOf = ({ prompt, seconds, seed, image }) => ({ prompt, seconds, seed, image });

/**
 * @param {import('../components/http.js').ViewClient} client @param {Editing} editing
 * @param {{names: (prompt: string) => string}} characters
 */
export const createShotFields = (client, editing, characters) => {
  const { element, words, one, upload } = client;
  const { film, change, draw, insert, move } = editing;
  const chosen = () => film.shots[indexOfShot(film, film.chosen)];

  /** @param {string} name @returns {HTMLElement & {value: string}} */
  const field = name => /** @type {HTMLInputElement} */ (one(`.shot-detail [name="${name}"]`));
  /** @param {string} name */
  const labelOf = name => /** @type {HTMLElement} */ (field(name).closest('label'));
  /** @param {string} what */
  const button = what => client.button(`.shot-detail [data-shot=${what}]`);

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

  /** @param {Shot} shot @param {File} file */
  const takePicture = async (shot, file) => {
    const path = await upload(file);
    if (!path) return;
    shot.image = { path, url: addressOf(path), name: file.name };
    change();
  };
  /** Trims the shot's video. @param {Shot} shot */
  const trim = shot => {
    if (!shot.made) return;
    const end = shot.made.frames / shot.made.fps;
    const frame = 1 / shot.made.fps;
    const from = clamp(Number(field('from').value) || 0, 0, end - frame);
    const to = Math.min(end, Math.max(Number(field('to').value) || end, from + frame));
    shot.trim = [from, to];
    change();
  };
  on(element, 'input', target => {
    const shot = chosen();
    const isFile = target instanceof HTMLInputElement && target.type === 'file';
    if (!shot || !target.closest('.shot-detail') || isFile) return;
    const name = target.getAttribute('name') ?? '';
    const value = fieldValue(target);
    if (name === 'from' || name === 'to') return trim(shot);
    Object.assign(shot, { [name]: name === 'fade' ? clamp(Number(value) || 0, 0, MOST_FADE) : value });
    change();
  });
  on(element, 'change', target => {
    const shot = chosen();
    if (shot && target.getAttribute('name') === 'image') {
      const [file] = filesOf(target);
      if (file) takePicture(shot, file);
    }
    if (target.closest('.shot-detail')) show();
  });

  /** Splits a shot: its video into two parts, or its length into two halves. @param {Shot} shot */
  const split = shot => {
    const at = indexOfShot(film, shot.id) + 1;
    if (!isKept(film, shot)) {
      const half = String(rounded((Number(shot.seconds) || USUAL_SECONDS) / 2));
      shot.seconds = half;
      return insert(at, { prompt: shot.prompt, seconds: half });
    }
    const { fps } = shot.made;
    const [from, to] = [startSeconds(shot), endSeconds(shot)];
    const middle = Math.round(((from + to) / 2) * fps) / fps;
    if (middle <= from || middle >= to) return;
    shot.trim = [from, middle];
    const made = { ...shot.made, kept: true, recipe: keptRecipe(shot.prompt) };
    insert(at, { ...copyOf(shot), start: 'on', fade: 0, trim: [middle, to], made });
  };
  /** @param {Shot} shot */
  const duplicate = shot => {
    const start = isFirst(film, shot) && shot.start === 'on' ? 'cut' : shot.start;
    const made = isKept(film, shot) && (start !== 'on' || shot.made.kept) ? { ...shot.made } : null;
    insert(indexOfShot(film, shot.id) + 1, { ...copyOf(shot), start, fade: shot.fade, trim: made ? shot.trim : null, made });
  };
  /** @param {Shot} shot */
  const remove = shot => {
    const at = indexOfShot(film, shot.id);
    film.shots.splice(at, 1);
    film.chosen = film.shots[Math.min(at, film.shots.length - 1)]?.id ?? null;
    change();
  };
  /** @param {Shot} shot */
  const keep = shot => {
    if (shot.made) shot.made = { ...shot.made, kept: true, recipe: keptRecipe(shot.prompt) };
    change();
  };
  /** @type {Record<string, (shot: Shot) => void>} */
  const acts = {
    split,
    double: duplicate,
    remove,
    keep,
    alone: shot => editing.makeAlone(shot.id),
    up: shot => move(shot.id, indexOfShot(film, shot.id) - 1),
    down: shot => move(shot.id, indexOfShot(film, shot.id) + 1),
  };
  on(element, 'click', target => {
    const pressed = /** @type {HTMLElement | null} */ (target.closest('[data-shot]'));
    const block = blockOf(target);
    const what = pressed?.dataset.shot ?? '';
    if (block && !wasDragged) choose(block.dataset.id ?? '');
    if (what === 'add') {
      insert(film.shots.length, {});
      field('prompt').focus();
    }
    const shot = chosen();
    if (shot) acts[what]?.(shot);
    if (['up', 'down'].includes(what)) pressed?.focus();
  });
  /** @param {Element} target @returns {HTMLElement | null} */
  const blockOf = target => target.closest('.film-block');
  /** @param {string} id */
  const choose = id => {
    film.chosen = id;
    draw();
  };
  on(element, 'keydown', (target, event) => {
    const id = blockOf(target)?.dataset.id;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!id || !step) return;
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
  on(element, 'pointerdown', (target, event) => {
    const block = blockOf(target);
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
    const others = /** @type {HTMLElement[]} */ ([...one('.film').children].filter(other => other !== item));
    const middle = item.getBoundingClientRect().left + item.offsetWidth / 2;
    const to = others.filter(other => {
      const box = other.getBoundingClientRect();
      return box.left + box.width / 2 < middle;
    }).length;
    held.to = to;
    others.forEach((other, index) => {
      other.dataset.gap = String(index === to);
    });
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
