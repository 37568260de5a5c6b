// The soundtrack below the film: its waveform, which can be dragged, its fade and its volume.
import { capture, fieldValue, filesOf, get, on, onRelease } from '../components/dom.js';
import { addressOf } from '../components/http.js';
import { clamp, fill } from '../components/text.js';
import { channelsOf, decodeSound, peaksOf } from '../components/waveform.js';
import { drawnSeconds, startTimes, totalSeconds, trackVolume } from './storyboard_shots.js';
import { leftOf, timeAt } from './timeline.js';

const PEAKS = 1200;
const MOST_BYTES = 60_000_000;
const HEIGHT = 44; // pixels

/** @param {import('../components/http.js').ViewClient} client @param {import('./storyboard_detail.js').Editing} editing */
export const createSoundtrack = (client, { film, change, draw }) => {
  const { element, words, note, upload, one } = client;
  /** @type {Float32Array | null} */
  let peaks = null;
  let seconds = 0;
  let source = '';

  const show = () => {
    const { track } = film;
    const label = one('.film-track .film-file span');
    one('.film-track-set').hidden = one('.film-lane').hidden = !track || !film.shots.length;
    label.textContent = track?.name ?? one('.film-track .film-file').dataset.words ?? '';
    if (!track) return;
    for (const name of /** @type {const} */ (['start', 'fade', 'volume'])) {
      const field = client.input(`.film-track [name="track_${name}"]`);
      if (field !== document.activeElement) field.value = String(track[name]);
    }
    drawWave();
  };
  /** @param {File} file */
  const take = async file => {
    if (file.size > MOST_BYTES) return note(words().soundtrack_too_large);
    const path = await upload(file);
    if (!path) return;
    film.track = { path, name: file.name, start: 0, fade: 1, volume: 1 };
    load();
    change();
  };
  /** Loads the waveform of the soundtrack. */
  const load = async () => {
    one('.film-track .film-file').dataset.words ??= one('.film-track .film-file span').textContent ?? '';
    const address = film.track ? addressOf(film.track.path) : '';
    if (address === source) return;
    peaks = null;
    seconds = 0;
    source = address;
    get('.film-player audio', HTMLAudioElement, element).src = address;
    if (!address) return;
    try {
      const sound = await decodeSound(address, 24000);
      if (address !== source) return;
      peaks = peaksOf(channelsOf(sound), PEAKS);
      seconds = sound.duration;
    } catch {
      // The browser cannot decode this audio, and no waveform is shown. The server checks the file.
    }
    draw();
  };

  const blocks = () => {
    const items = /** @type {HTMLElement[]} */ ([...one('.film').children]);
    const starts = startTimes(film);
    return film.shots.map((shot, index) => ({
      from: starts[index],
      seconds: drawnSeconds(film, shot),
      left: items[index].offsetLeft,
      width: items[index].offsetWidth,
    }));
  };
  const drawWave = () => {
    const { track } = film;
    if (!track || !film.shots.length || !one('.film').offsetWidth) return;
    const canvas = client.canvas('.film-lane canvas');
    const end = totalSeconds(film);
    const heard = clamp(end - track.start, 0, seconds || end);
    const left = leftOf(blocks(), track.start);
    const width = Math.max(24, leftOf(blocks(), track.start + heard) - left);
    const scale = devicePixelRatio || 1;
    canvas.style.cssText = `margin-left:${left}px;width:${width}px`;
    const times = { start: track.start.toFixed(1), end: (track.start + heard).toFixed(1) };
    canvas.setAttribute('aria-label', fill(words().soundtrack_span, times));
    Object.assign(canvas, { width: Math.round(width * scale), height: Math.round(HEIGHT * scale) });
    const pen = canvas.getContext('2d');
    if (!pen) return;
    pen.fillStyle = getComputedStyle(canvas).color;
    const bars = Math.floor(width / 3);
    for (let bar = 0; bar < bars; bar++) {
      const time = (bar / bars) * heard;
      const at = seconds ? Math.min(PEAKS - 1, Math.floor((time / seconds) * PEAKS)) : 0;
      const tall = Math.max(2, (peaks ? peaks[at] : 0.3) * trackVolume(track, time, heard - time) * 40) * scale;
      pen.fillRect(3 * bar * scale, (canvas.height - tall) / 2, 2 * scale, tall);
    }
  };
  new ResizeObserver(drawWave).observe(element);

  on(element, 'change', target => {
    if (target.getAttribute('name') !== 'track') return;
    const [file] = filesOf(target);
    if (file) take(file);
  });
  on(element, 'input', target => {
    const name = /** @type {'start' | 'fade' | 'volume' | undefined} */ (
      /^track_(start|fade|volume)$/.exec(target.getAttribute('name') ?? '')?.[1]
    );
    if (!name || !film.track) return;
    const most = { start: Math.max(0, totalSeconds(film) - 0.1), fade: 30, volume: 2 }[name];
    film.track[name] = clamp(Number(fieldValue(target)) || 0, 0, most);
    change();
  });
  on(element, 'click', target => {
    if (!target.closest('[data-shot=silence]')) return;
    film.track = null;
    load();
    change();
  });
  /** @type {{x: number, left: number} | null} */
  let held = null;
  on(element, 'pointerdown', (target, event) => {
    if (!target.matches('.film-lane canvas') || !film.track) return;
    capture(target, event);
    held = { x: event.clientX, left: leftOf(blocks(), film.track.start) };
  });
  on(element, 'pointermove', (_, event) => {
    if (!held || !film.track) return;
    const time = timeAt(blocks(), held.left + event.clientX - held.x);
    film.track.start = Math.round(10 * clamp(time, 0, Math.max(0, totalSeconds(film) - 0.1))) / 10;
    show();
  });
  onRelease(element, () => {
    if (!held) return;
    held = null;
    change();
  });

  return { load, show };
};
