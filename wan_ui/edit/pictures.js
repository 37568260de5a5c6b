// Images beside the clip: keyframes, reference images, and the person of Animate. Each image is uploaded when it is added, and the server
// checks it.
import { capture, filesOf, find, findAll, on, onRelease } from '../components/dom.js';
import { fill } from '../components/text.js';
import { frameBeyond, freeFrame, nearestFrame, nextFrame } from './keyframes.js';

/** @typedef {{path: string, name: string, address: string}} Picture */
/** @typedef {Picture & {frame: number, button?: HTMLButtonElement}} Key */

/**
 * @param {import('../components/http.js').ViewClient} client
 * @param {{limits: () => import('./clip_math.js').Limits | null, changed: () => void}} view
 */
export const createPictures = (client, view) => {
  const { element, words, note, send, upload, one, select } = client;
  const state = {
    keys: /** @type {Key[]} */ ([]),
    references: /** @type {Picture[]} */ ([]),
    figure: /** @type {Picture | null} */ (null),
    chosen: /** @type {Key | null} */ (null),
  };
  /** @type {WeakMap<Element, Key>} */
  const keyOfButton = new WeakMap();

  /** @param {Key | null} [key] */
  const takenFrames = key => state.keys.filter(other => other !== key).map(other => other.frame);
  const lastFrame = () => Number(select('#edit-length').value) - 1;
  const maxReferences = () => view.limits()?.max_references ?? 0;

  /** Uploads an image. Returns null if it is unusable. @param {File} file @returns {Promise<Picture | null>} */
  const takePicture = async file => {
    if (!/^image\//.test(file.type) && !/\.(png|jpe?g|webp)$/i.test(file.name)) {
      note(words().images_only);
      return null;
    }
    const path = await upload(file);
    const facts = path && (await send('/picture', { picture: path }));
    return facts && { path: facts.path, name: facts.name, address: URL.createObjectURL(file) };
  };
  /** @param {File[]} files */
  const addReferences = async files => {
    for (const file of files) {
      if (state.references.length >= maxReferences()) return note(fill(words().references_full, { count: maxReferences() }));
      const picture = await takePicture(file);
      if (picture) state.references.push(picture);
      show();
    }
  };
  /** @param {File} file */
  const setFigure = async file => {
    state.figure = (await takePicture(file)) ?? state.figure;
    show();
  };
  /** Adds keyframes near `frame`. Without `frame`, spreads the keyframes over the video. @param {File[]} files @param {number | null} [frame] */
  const addKeys = async (files, frame = null) => {
    for (const file of files) {
      const picture = await takePicture(file);
      if (picture) placeKey({ ...picture, frame: -1 }, frame ?? nextFrame(takenFrames(), lastFrame()));
    }
  };
  /** @param {Key} key @param {number} wanted */
  const placeKey = (key, wanted) => {
    const frame = freeFrame(wanted, takenFrames(key), lastFrame());
    if (frame === null) return note(words().key_full);
    key.frame = frame;
    if (!state.keys.includes(key)) state.keys.push(key);
    state.chosen = key;
    note(frame === nearestFrame(wanted, lastFrame()) ? '' : fill(words().key_taken, { frame }));
    show();
  };
  /** Moves the keyframes into a video that has become shorter. Removes keyframes for which no frame is free. */
  const keepWithin = () => {
    for (const key of state.keys.toSorted((a, b) => a.frame - b.frame)) {
      const frame = freeFrame(key.frame, takenFrames(key), lastFrame());
      if (frame === null) state.keys.splice(state.keys.indexOf(key), 1);
      else key.frame = frame;
    }
    show();
  };

  /** @param {Picture} picture @param {string} className */
  const thumbnail = (picture, className) => {
    const button = Object.assign(document.createElement('button'), { type: 'button', className });
    button.append(Object.assign(new Image(), { src: picture.address, alt: picture.name, draggable: false }));
    return button;
  };
  /** @param {Key} key */
  const makeButton = key => {
    const button = thumbnail(key, 'key');
    keyOfButton.set(button, key);
    return button;
  };
  const show = () => {
    const track = find('.track', element);
    if (!track) return;
    if (!state.chosen || !state.keys.includes(state.chosen)) state.chosen = state.keys[0] ?? null;
    for (const old of findAll('.key', track)) if (!state.keys.some(key => key.button === old)) old.remove();
    for (const key of state.keys) {
      key.button ??= makeButton(key);
      if (key.button.parentNode !== track) track.append(key.button);
      key.button.style.setProperty('--at', String(key.frame / Math.max(1, lastFrame())));
      key.button.setAttribute('aria-pressed', String(key === state.chosen));
      key.button.setAttribute('aria-label', `${key.name}: ${keyText(key)}`);
    }
    one('.track .empty').hidden = state.keys.length > 0;
    one('.keys output').textContent = state.chosen ? keyText(state.chosen) : '';
    one('#edit-key-remove').hidden = !state.chosen;
    showTiles('.references', state.references, maxReferences());
    showTiles('.figure', state.figure ? [state.figure] : [], 1);
    view.changed();
  };
  /** Shows the images of a row as buttons that remove them. @param {string} row @param {Picture[]} pictures @param {number} most */
  const showTiles = (row, pictures, most) => {
    const add = one(`${row} .tile.add`);
    for (const old of findAll(`${row} .tile:not(.add)`, element)) old.remove();
    pictures.forEach((picture, place) => {
      const button = thumbnail(picture, 'tile');
      button.title = `${words().remove}: ${picture.name}`;
      button.setAttribute('aria-label', button.title);
      button.dataset.place = String(place);
      add.before(button);
    });
    add.hidden = pictures.length >= most;
  };
  /** @param {Key} key */
  const keyText = ({ frame }) =>
    fill(words().key, { frame, last: lastFrame(), at: (frame / (view.limits()?.fps ?? 1)).toFixed(2) });
  const removeChosen = () => {
    if (state.chosen) state.keys.splice(state.keys.indexOf(state.chosen), 1);
    show();
  };

  // Dragging or keys move a keyframe along the track.
  /** @type {{key: Key, off: number} | null} */
  let dragged = null;
  /** @param {number} clientX */
  const frameAtTime = clientX => {
    const track = one('.track');
    const box = track.getBoundingClientRect();
    const half = parseFloat(getComputedStyle(track).getPropertyValue('--key')) / 2;
    return ((clientX - box.left - half) / (box.width - 2 * half)) * lastFrame();
  };
  /** @param {Element} target */
  const keyOf = target => keyOfButton.get(target.closest('.key') ?? target);
  on(element, 'pointerdown', (target, event) => {
    const key = keyOf(target);
    if (!key) return;
    capture(one('.track'), event);
    dragged = { key, off: frameAtTime(event.clientX) - key.frame };
    state.chosen = key;
    show();
    one('.key[aria-pressed="true"]').focus({ preventScroll: true });
  });
  on(element, 'pointermove', (_, event) => {
    if (!dragged) return;
    const { key, off } = dragged;
    const frame = freeFrame(frameAtTime(event.clientX) - off, takenFrames(key), lastFrame());
    if (frame === null || frame === key.frame) return;
    key.frame = frame;
    show();
  });
  onRelease(element, () => {
    dragged = null;
  });
  /** @type {Record<string, number>} */
  const STEPS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 };
  on(element, 'keydown', (target, event) => {
    const key = keyOf(target);
    if (!key) return;
    const step = STEPS[event.key] ?? 0;
    const wanted = step ? key.frame + step : { Home: 0, End: lastFrame() }[event.key];
    const isRemoved = ['Delete', 'Backspace'].includes(event.key);
    if (wanted === undefined && !isRemoved) return;
    event.preventDefault();
    event.stopPropagation();
    state.chosen = key;
    if (wanted === undefined) return removeChosen();
    key.frame = frameBeyond(wanted, step, takenFrames(key), lastFrame()) ?? key.frame;
    show();
  });
  on(element, 'click', target => {
    const tile = /** @type {HTMLElement | null} */ (target.closest('.tile:not(.add)'));
    if (tile) {
      if (tile.closest('.figure')) state.figure = null;
      else state.references.splice(Number(tile.dataset.place), 1);
      show();
    }
    if (target.id === 'edit-key-remove') removeChosen();
  });
  on(element, 'change', target => {
    if (!['edit-keys', 'edit-keys-first', 'edit-references', 'edit-figure'].includes(target.id)) return;
    const files = filesOf(target);
    if (!files.length) return;
    if (target.id === 'edit-references') addReferences(files);
    else if (target.id === 'edit-figure') setFigure(files[0]);
    else addKeys(files);
  });

  // Fields of the class `takes-files` handle dropped files themselves.
  /** @param {Element} target @returns {HTMLElement | null} */
  const fieldOf = target => target.closest('.takes-files');
  on(element, 'dragover', (target, event) => {
    const field = fieldOf(target);
    if (!field || !event.dataTransfer?.types.includes('Files')) return;
    event.preventDefault();
    field.dataset.over = 'true';
  });
  on(element, 'dragleave', target => {
    delete fieldOf(target)?.dataset.over;
  });
  on(element, 'drop', (target, event) => {
    const field = fieldOf(target);
    const files = [...(event.dataTransfer?.files ?? [])];
    if (!field || !files.length) return;
    event.preventDefault();
    delete field.dataset.over;
    if (field.closest('.figure')) setFigure(files[0]);
    else if (field.matches('.tiles')) addReferences(files);
    else addKeys(files, frameAtTime(event.clientX));
  });

  /** Shows the images of an earlier video. @param {Key[]} keys @param {Picture[]} references @param {Picture | null} figure */
  const restore = (keys, references, figure) => Object.assign(state, { keys, references, figure });

  return {
    addKeys,
    addReferences,
    setFigure,
    keepWithin,
    lastFrame,
    restore,
    show,
    figure: () => state.figure,
    keys: () => state.keys,
    references: () => (view.limits()?.inputs.includes('references') ? state.references : []),
  };
};
