// The soundtrack below the film: its waveform, which can be dragged, its fade and its volume.
import { capture, get, on, onDrag, onFiles } from '../components/dom.js';
import { addressOf } from '../components/http.js';
import { clamp, fill } from '../components/text.js';
import { channelsOf, decodeSound, peaksOf } from '../components/waveform.js';
import { drawnSeconds, startTimes, totalSeconds, trackVolume } from './storyboard_shots.js';
import { leftOf, timeAt } from './timeline.js';

const PEAKS = 1200;
const MOST_BYTES = 60_000_000;
const HEIGHT = 44; // pixels

/** @param {ViewClient} client @param {import('./storyboard_detail.js').Editing} editing */
export const createSoundtrack = (client, { film, change, draw }) => {
  const { element, words, note, upload, one } = client;
  /** @type {Float32Array | null} */
  let peaks = null;
  let seconds = 0;
  let source = '';

  const show = () => {
    const { track } = film;
    one('.film-track-set').hidden = one('.film-lane').hidden = !track || !film.shots.length;
    one('.film-track .film-file span').textContent = track?.name ?? one('.film-track .film-file').dataset.words ?? '';
    if (!track) return;
    for (const name of /** @type {const} */ (['start', 'fade', 'volume'])) {
      const field = client.input(`.film-track [name="track_${name}"]`);
      if (field !== document.activeElement) field.value = String(track[name]);
    }
    drawWave();
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
    return film.shots.map((shot, index) => {
      const { offsetLeft: left, offsetWidth: width } = items[index];
      return { from: starts[index], seconds: drawnSeconds(film, shot), left, width };
    });
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

  const latestStart = () => Math.max(0, totalSeconds(film) - 0.1);
  onFiles(element, '[name="track"]', async ([file]) => {
    if (file.size > MOST_BYTES) return note(words().soundtrack_too_large);
    const path = await upload(file);
    if (!path) return;
    film.track = { path, name: file.name, start: 0, fade: 1, volume: 1 };
    load();
    change();
  });
  on(element, 'input', '[name^="track_"]', (/** @type {HTMLInputElement} */ field) => {
    const name = /** @type {'start' | 'fade' | 'volume'} */ (field.name.slice('track_'.length));
    if (!film.track) return;
    film.track[name] = clamp(Number(field.value) || 0, 0, { start: latestStart(), fade: 30, volume: 2 }[name]);
    change();
  });
  on(element, 'click', '[data-shot=silence]', () => {
    film.track = null;
    load();
    change();
  });
  onDrag(element, '.film-lane canvas', (target, event) => {
    const { track } = film;
    if (!track) return;
    capture(target, event);
    const left = leftOf(blocks(), track.start) - event.clientX;
    return {
      move: ({ clientX }) => {
        track.start = Math.round(10 * clamp(timeAt(blocks(), left + clientX), 0, latestStart())) / 10;
        show();
      },
      end: change,
    };
  });

  return { load, show };
};
