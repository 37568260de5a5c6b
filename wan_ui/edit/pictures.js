// Images beside the clip: keyframes, reference images, and the person of Animate. Each image is uploaded when it is added, and the server
// checks it.
import { capture, create, find, findAll, on, onDrag, onFiles } from '../components/dom.js';
import { fill } from '../components/text.js';
import { frameBeyond, freeFrame, nearestFrame, nextFrame } from './keyframes.js';

/** The frames by which a key moves a keyframe. @type {Record<string, number>} */
const STEPS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 };

/** @typedef {{path: string, name: string, address: string}} Picture */
/** @typedef {Picture & {frame: number, button?: HTMLButtonElement}} Key */

/** @param {ViewClient} client @param {{limits: () => import('./clip_math.js').Limits | null, changed: () => void}} view */
export const createPictures = (client, view) => {
  const { element, words, note, send, upload, one, select } = client;
  const state = {
    keys: /** @type {Key[]} */ ([]),
    references: /** @type {Picture[]} */ ([]),
    figure: /** @type {Picture | null} */ (null),
    chosen: /** @type {Key | null} */ (null),
  };

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
  const addReferences = async (/** @type {File[]} */ files) => {
    for (const file of files) {
      if (state.references.length >= maxReferences()) return note(fill(words().references_full, { count: maxReferences() }));
      const picture = await takePicture(file);
      if (picture) state.references.push(picture);
      show();
    }
  };
  const setFigure = async (/** @type {File} */ file) => {
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
  /** Adds a keyframe. @param {Key} key @param {number} wanted */
  const placeKey = (key, wanted) => {
    const frame = freeFrame(wanted, takenFrames(), lastFrame());
    if (frame === null) return note(words().key_full);
    key.frame = frame;
    state.keys.push(key);
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
  const thumbnail = ({ address, name }, className) =>
    create('button', { type: 'button', className }, create('img', { src: address, alt: name, draggable: false }));
  const show = () => {
    const track = find('.track', element);
    if (!track) return;
    if (!state.chosen || !state.keys.includes(state.chosen)) state.chosen = state.keys[0] ?? null;
    for (const old of findAll('.key', track)) if (!state.keys.some(key => key.button === old)) old.remove();
    for (const key of state.keys) {
      key.button ??= thumbnail(key, 'key');
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
    for (const [place, picture] of pictures.entries()) {
      const button = thumbnail(picture, 'tile');
      button.title = `${words().remove}: ${picture.name}`;
      button.setAttribute('aria-label', button.title);
      button.dataset.place = String(place);
      add.before(button);
    }
    add.hidden = pictures.length >= most;
  };
  const keyText = (/** @type {Key} */ { frame }) =>
    fill(words().key, { frame, last: lastFrame(), at: (frame / (view.limits()?.fps ?? 1)).toFixed(2) });
  const removeChosen = () => {
    if (state.chosen) state.keys.splice(state.keys.indexOf(state.chosen), 1);
    show();
  };

  // Dragging or keys move a keyframe along the track.
  const frameAt = (/** @type {number} */ clientX) => {
    const track = one('.track');
    const box = track.getBoundingClientRect();
    const half = parseFloat(getComputedStyle(track).getPropertyValue('--key')) / 2;
    return ((clientX - box.left - half) / (box.width - 2 * half)) * lastFrame();
  };
  const keyOf = (/** @type {HTMLElement} */ button) => state.keys.find(key => key.button === button);
  onDrag(element, '.key', (button, event) => {
    const key = keyOf(button);
    if (!key) return;
    capture(one('.track'), event);
    const off = frameAt(event.clientX) - key.frame;
    state.chosen = key;
    show();
    button.focus({ preventScroll: true });
    return {
      move: ({ clientX }) => {
        const frame = freeFrame(frameAt(clientX) - off, takenFrames(key), lastFrame());
        if (frame === null || frame === key.frame) return;
        key.frame = frame;
        show();
      },
    };
  });
  on(element, 'keydown', '.key', (button, event) => {
    const key = keyOf(button);
    const step = STEPS[event.key] ?? 0;
    const isRemoved = ['Delete', 'Backspace'].includes(event.key);
    const wanted = key && step ? key.frame + step : { Home: 0, End: lastFrame() }[event.key];
    if (!key || (wanted === undefined && !isRemoved)) return;
    event.preventDefault();
    event.stopPropagation();
    state.chosen = key;
    if (wanted === undefined) return removeChosen();
    key.frame = frameBeyond(wanted, step, takenFrames(key), lastFrame()) ?? key.frame;
    show();
  });
  on(element, 'click', '.tile:not(.add)', tile => {
    if (tile.closest('.figure')) state.figure = null;
    else state.references.splice(Number(tile.dataset.place), 1);
    show();
  });
  on(element, 'click', '#edit-key-remove', removeChosen);
  onFiles(element, '#edit-references', addReferences);
  onFiles(element, '#edit-figure', ([file]) => setFigure(file));
  onFiles(element, '#edit-keys, #edit-keys-first', files => addKeys(files));

  // Fields of the class `takes-files` handle dropped files themselves.
  on(element, 'dragover', '.takes-files', (field, event) => {
    if (!event.dataTransfer?.types.includes('Files')) return;
    event.preventDefault();
    field.dataset.over = 'true';
  });
  on(element, 'dragleave', '.takes-files', ({ dataset }) => {
    delete dataset.over;
  });
  on(element, 'drop', '.takes-files', (field, event) => {
    const files = [...(event.dataTransfer?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    delete field.dataset.over;
    if (field.closest('.figure')) setFigure(files[0]);
    else if (field.matches('.tiles')) addReferences(files);
    else addKeys(files, frameAt(event.clientX));
  });

  /** Shows the images of an earlier video. @param {Key[]} keys @param {Picture[]} references @param {Picture | null} figure */
  const restore = (keys, references, figure) => Object.assign(state, { keys, references, figure });

  const figure = () => state.figure;
  const keys = () => state.keys;
  const references = () => (view.limits()?.inputs.includes('references') ? state.references : []);
  return { addKeys, addReferences, figure, keepWithin, keys, lastFrame, references, restore, setFigure, show };
};
