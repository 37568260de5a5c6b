// The uploaded clip and its selected part. The clip plays from the local file. The server receives the file once and returns its facts
// and thumbnails.
import { capture, fieldValue, find, findVideo, on, onRelease } from '../components/dom.js';
import { fill } from '../components/text.js';
import { ANY_LENGTH, filmPlaces, fittingPart, latestStart } from './clip_math.js';

const RESTING_MILLISECONDS = 40; // between two checks of a paused player

/** @typedef {import('./clip_math.js').Limits} Limits */
/**
 * The facts of a clip, from the server.
 * @typedef {object} Facts
 * @property {string} path
 * @property {string} name
 * @property {number} width
 * @property {number} height
 * @property {number} seconds
 * @property {number} fps
 * @property {string} thumbnails
 * @property {boolean} has_sound
 */

/**
 * @param {import('../components/http.js').ViewClient} client
 * @param {{
 *   limits: () => Limits,
 *   isExtending: () => boolean,
 *   shown: () => void,
 *   partChanged: () => void,
 *   restarted: () => void,
 * }} view `shown` is called for each new clip, `partChanged` for each new selection, `restarted` when the selected part repeats.
 */
export const createClip = (client, view) => {
  const { element, words, note, send, upload, one, input, canvas, video, image } = client;
  /** The selected part: `frames` frames at the model's rate, `start` in seconds. `fits`: the clip is long enough for the model. */
  const state = { facts: /** @type {Facts | null} */ (null), start: 0, frames: 0, fits: false };
  let address = '';
  let latestUpload = 0;

  /** Uploads a clip. A clip that is dropped meanwhile replaces it. @param {File} file */
  const load = async file => {
    if (!find('.clip', element)) return;
    const uploadNumber = ++latestUpload;
    note('');
    if (file.size > Number(words().bytes)) return note(words().large);
    showBusy(true);
    const path = await upload(file);
    const facts = path && (await send('/clip', { clip: path }));
    if (uploadNumber !== latestUpload) return;
    showBusy(false);
    if (facts) show(facts, URL.createObjectURL(file), file.type === 'image/gif' || /\.gif$/i.test(file.name));
  };
  /** @param {boolean} isBusy */
  const showBusy = isBusy => {
    one('.edit').dataset.busy = String(isBusy);
    one('.clip .drop').textContent = isBusy ? words().reading : words().drop;
  };
  /** @param {Facts} facts @param {string} source @param {boolean} isStill */
  const show = (facts, source, isStill) => {
    if (address) URL.revokeObjectURL(address);
    address = source;
    Object.assign(state, { facts, start: 0, frames: 0 });
    one('.edit').dataset.clip = facts.name;
    one('.timeline').hidden = false;
    image('.thumbs').src = facts.thumbnails;
    const player = video('#edit-player');
    const still = image('.clip .still');
    for (const shown of [player, still]) {
      shown.hidden = true;
      shown.removeAttribute('src');
    }
    const shown = isStill ? still : player;
    if (address) {
      shown.src = address;
      shown.hidden = false;
    }
    one('.clip').style.setProperty('--ratio', String(facts.width / facts.height));
    const { width, height, fps, seconds } = facts;
    const sound = facts.has_sound ? ` · ${words().sound}` : '';
    one('.timeline .facts').textContent =
      fill(words().facts, { ...facts, has_sound: '', width, height, fps, seconds: seconds.toFixed(1) }) + sound;
    for (const name of ['#edit-from', '#edit-to']) input(name).max = String(seconds);
    view.shown();
  };

  /** Draws as many thumbnails as fit side by side. */
  const drawFilm = () => {
    const sheet = find('.thumbs', element);
    const strip = find('.strip', element);
    if (!(sheet instanceof HTMLImageElement) || !sheet.naturalWidth || !strip?.clientWidth) return;
    const film = canvas('.film');
    const scale = window.devicePixelRatio || 1;
    [film.width, film.height] = [strip.clientWidth * scale, strip.clientHeight * scale];
    const pen = film.getContext('2d');
    const size = { width: sheet.naturalWidth, height: sheet.naturalHeight };
    for (const { from, to } of filmPlaces(size, film, Number(strip.dataset.count)))
      pen?.drawImage(sheet, from.left, from.top, from.across, from.down, to.left, 0, to.width, film.height);
  };
  on(
    element,
    'load',
    target => {
      if (target.matches('.thumbs')) drawFilm();
    },
    true,
  );
  window.addEventListener('resize', drawFilm);

  /** Shows a thumbnail of a clip that the browser cannot play. */
  const cannotPlay = async () => {
    const thumbnails = image('.thumbs');
    if (!video('#edit-player').getAttribute('src')) return;
    video('#edit-player').hidden = true;
    try {
      await thumbnails.decode();
    } catch {
      return;
    }
    const count = Number(one('.strip').dataset.count);
    const [width, height] = [thumbnails.naturalWidth / count, thumbnails.naturalHeight];
    const picture = Object.assign(document.createElement('canvas'), { width, height });
    picture.getContext('2d')?.drawImage(thumbnails, Math.floor(count / 2) * width, 0, width, height, 0, 0, width, height);
    const still = image('.clip .still');
    still.src = picture.toDataURL('image/jpeg');
    still.hidden = false;
  };

  // The model supports the selected part's number of frames. The first handle moves the part, the last handle changes its length.
  const counts = () => (view.isExtending() ? { ...view.limits(), ...ANY_LENGTH } : view.limits());
  const rounding = () => Number(one('.strip').dataset.rounding);
  const end = () => state.start + state.frames / view.limits().fps;
  /** @param {number} frames @param {Facts} facts */
  const lastStart = (frames, facts) => latestStart(frames, facts.seconds, view.limits().fps, rounding());

  /** Selects the supported part that is nearest to the given part. @param {number} start @param {number} frames */
  const selectPart = (start, frames) => {
    if (!state.facts) return;
    const { seconds } = state.facts;
    const { fps, min_frames: least, title } = counts();
    Object.assign(state, fittingPart(start, frames, seconds, counts(), rounding()));
    if (!state.fits) note(fill(words().short, { model: title, frames: least, seconds: (least / fps).toFixed(2) }));
    input('#edit-from').value = String(state.start);
    input('#edit-to').value = String(end());
    const strip = one('.strip');
    strip.style.setProperty('--from', `${(100 * state.start) / seconds}%`);
    strip.style.setProperty('--to', `${100 * Math.min(1, end() / seconds)}%`);
    one('#edit-part').textContent = fill(words().part, {
      start: state.start.toFixed(2),
      end: end().toFixed(2),
      frames: state.frames,
      fps,
      length: (state.frames / fps).toFixed(2),
    });
    const player = video('#edit-player');
    const isOutside = player.currentTime < state.start || player.currentTime > end();
    if (!player.hidden && isOutside) player.currentTime = state.start;
    view.partChanged();
  };
  on(element, 'input', target => {
    if (!state.facts) return;
    const value = Number(fieldValue(target));
    if (target.id === 'edit-from') selectPart(value, state.frames);
    if (target.id === 'edit-to') selectPart(state.start, Math.round((value - state.start) * view.limits().fps));
  });
  // Dragging the middle moves the whole part.
  /** @type {{x: number, start: number} | null} */
  let held = null;
  on(element, 'pointerdown', (target, event) => {
    if (!target.matches('.taken') || !state.facts) return;
    capture(target, event);
    held = { x: event.clientX, start: state.start };
  });
  on(element, 'pointermove', (_, event) => {
    if (!held || !state.facts) return;
    const start = held.start + ((event.clientX - held.x) / one('.strip').clientWidth) * state.facts.seconds;
    selectPart(Math.min(start, lastStart(state.frames, state.facts)), state.frames);
  });
  onRelease(element, () => {
    held = null;
  });

  // The player repeats the selected part, and a line shows the position. Animation frames are only requested while it plays.
  const follow = () => {
    const player = findVideo('#edit-player', element);
    const isSeen = state.facts !== null && player !== null && !player.hidden && element.offsetParent !== null;
    if (isSeen && !player.paused) requestAnimationFrame(follow);
    else setTimeout(follow, RESTING_MILLISECONDS);
    if (!isSeen || !state.facts) return;
    if (!player.seeking && (player.currentTime >= end() || player.ended)) {
      player.currentTime = state.start;
      view.restarted();
    }
    one('.strip').style.setProperty('--now', `${(100 * player.currentTime) / state.facts.seconds}%`);
  };
  follow();

  return Object.assign(state, { cannotPlay, drawFilm, end, load, selectPart, show });
};
/** @typedef {ReturnType<typeof createClip>} Clip */
