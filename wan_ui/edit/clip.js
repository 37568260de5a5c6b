// The uploaded clip and its selected part. The clip plays from the local file. The server receives the file once and returns its facts
// and thumbnails.
import { capture, create, find, findVideo, on, onDrag, onFirst } from '../components/dom.js';
import { fill } from '../components/text.js';
import { ANY_LENGTH, filmPlaces, fittingPart, latestStart } from './clip_math.js';

const RESTING_MILLISECONDS = 40; // between two checks of a paused player

/** The facts of a clip, from the server.
 * @typedef {{path: string, name: string, width: number, height: number, seconds: number, fps: number, thumbnails: string,
 *   has_sound: boolean}} Facts */

/** @param {ViewClient} client
 * @param {{limits: () => import('./clip_math.js').Limits, isExtending: () => boolean, shown: () => void, partChanged: () => void,
 *   restarted: () => void}} view
 * `shown` is called for each new clip, `partChanged` for each new selection, `restarted` when the selected part repeats. */
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
  const showBusy = (/** @type {boolean} */ isBusy) => {
    one('.edit').dataset.busy = String(isBusy);
    one('.clip .drop').textContent = isBusy ? words().reading : words().drop;
  };
  /** @param {Facts} facts @param {string} source @param {boolean} isStill */
  const show = (facts, source, isStill) => {
    if (address) URL.revokeObjectURL(address);
    address = source;
    Object.assign(state, { facts, start: 0, frames: 0 });
    const { name, width, height, fps, seconds, thumbnails, has_sound } = facts;
    one('.edit').dataset.clip = name;
    one('.timeline').hidden = false;
    image('.thumbs').src = thumbnails;
    const player = video('#edit-player');
    const still = image('.clip .still');
    for (const shown of [player, still]) {
      shown.hidden = true;
      shown.removeAttribute('src');
    }
    if (address) Object.assign(isStill ? still : player, { src: address, hidden: false });
    one('.clip').style.setProperty('--ratio', String(width / height));
    const text = fill(words().facts, { width, height, fps, seconds: seconds.toFixed(1) });
    one('.timeline .facts').textContent = has_sound ? `${text} · ${words().sound}` : text;
    for (const end of ['#edit-from', '#edit-to']) input(end).max = String(seconds);
    view.shown();
  };

  /** Draws as many thumbnails as fit side by side. */
  const drawFilm = () => {
    const sheet = find('.thumbs', element);
    const strip = find('.strip', element);
    if (!(sheet instanceof HTMLImageElement) || !sheet.naturalWidth || !strip?.clientWidth) return;
    const film = canvas('.film');
    const scale = window.devicePixelRatio || 1;
    Object.assign(film, { width: strip.clientWidth * scale, height: strip.clientHeight * scale });
    const pen = film.getContext('2d');
    const size = { width: sheet.naturalWidth, height: sheet.naturalHeight };
    for (const { from, to } of filmPlaces(size, film, Number(strip.dataset.count)))
      pen?.drawImage(sheet, from.left, from.top, from.across, from.down, to.left, 0, to.width, film.height);
  };
  onFirst(element, 'load', '.thumbs', drawFilm);
  window.addEventListener('resize', drawFilm);

  // A clip that the browser cannot play is shown as one of its thumbnails.
  onFirst(element, 'error', '#edit-player', async (/** @type {HTMLVideoElement} */ player) => {
    const thumbnails = image('.thumbs');
    if (!player.getAttribute('src')) return;
    player.hidden = true;
    try {
      await thumbnails.decode();
    } catch {
      return;
    }
    const count = Number(one('.strip').dataset.count);
    const [width, height] = [thumbnails.naturalWidth / count, thumbnails.naturalHeight];
    const picture = create('canvas', { width, height });
    picture.getContext('2d')?.drawImage(thumbnails, Math.floor(count / 2) * width, 0, width, height, 0, 0, width, height);
    Object.assign(image('.clip .still'), { src: picture.toDataURL('image/jpeg'), hidden: false });
  });

  // The model supports the selected part's number of frames. The first handle moves the part, the last handle changes its length.
  const counts = () => (view.isExtending() ? { ...view.limits(), ...ANY_LENGTH } : view.limits());
  const rounding = () => Number(one('.strip').dataset.rounding);
  const end = () => state.start + state.frames / view.limits().fps;

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
    const [from, to, length] = [state.start, end(), state.frames / fps].map(time => time.toFixed(2));
    one('#edit-part').textContent = fill(words().part, { start: from, end: to, frames: state.frames, fps, length });
    const player = video('#edit-player');
    const isOutside = player.currentTime < state.start || player.currentTime > end();
    if (!player.hidden && isOutside) player.currentTime = state.start;
    view.partChanged();
  };
  on(element, 'input', '#edit-from', (/** @type {HTMLInputElement} */ { value }) => selectPart(Number(value), state.frames));
  on(element, 'input', '#edit-to', (/** @type {HTMLInputElement} */ { value }) => {
    if (state.facts) selectPart(state.start, Math.round((Number(value) - state.start) * view.limits().fps));
  });
  // Dragging the middle moves the whole part.
  onDrag(element, '.taken', (target, event) => {
    const { facts, start } = state;
    if (!facts) return;
    capture(target, event);
    return {
      move: ({ clientX }) => {
        const wanted = start + ((clientX - event.clientX) / one('.strip').clientWidth) * facts.seconds;
        const last = latestStart(state.frames, facts.seconds, view.limits().fps, rounding());
        selectPart(Math.min(wanted, last), state.frames);
      },
    };
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

  return Object.assign(state, { drawFilm, end, load, selectPart, show });
};
/** @typedef {ReturnType<typeof createClip>} Clip */
