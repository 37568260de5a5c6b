// The stage's volume and waveform. Videos are muted by default. The browser stores the visitor's choice.
import { find, get, video as getVideo, input, isShown, on, onFirst, play } from '../components/dom.js';
import { channelsOf, decodeSound, peaksOf } from '../components/waveform.js';

const PEAKS = 800;
const USUAL_VOLUME = 0.8;
const kept = Number(localStorage.getItem('studio-volume') ?? USUAL_VOLUME);

/** `source` is the video that was started with this volume. `isRefused` is true if the browser refuses to start it with audio. */
const loudness = {
  isMuted: localStorage.getItem('studio-muted') !== 'false',
  volume: kept >= 0 && kept <= 1 ? kept : USUAL_VOLUME,
  /** @type {string | null} */
  source: '',
  isRefused: false,
};

/** Returns the volume of a video that the visitor unmuted. */
export const audibleVolume = () => loudness.volume || 0.5;

/** @param {boolean} isMuted @param {number} volume */
const remember = (isMuted, volume) => {
  Object.assign(loudness, { isMuted, volume, isRefused: false });
  localStorage.setItem('studio-muted', String(isMuted));
  localStorage.setItem('studio-volume', String(volume));
};

const setLoudness = (/** @type {HTMLVideoElement} */ video) => {
  video.volume = loudness.volume;
  video.muted = loudness.isMuted || loudness.volume === 0;
};

export const toggleSound = () => {
  if (!isShown(find('[data-player=sound]'))) return;
  const video = getVideo('.stage video');
  remember(!video.muted, audibleVolume());
  setLoudness(video);
  showSound();
};

const startWithSound = async (/** @type {HTMLVideoElement} */ video) => {
  loudness.isRefused = false;
  setLoudness(video);
  if (video.muted) return;
  try {
    await video.play();
  } catch (error) {
    if (!(error instanceof DOMException) || error.name !== 'NotAllowedError') return;
    loudness.isRefused = video.muted = true;
    play(video);
  }
};

/** Updates the audio controls. Runs in every tick of `studio.js`, because the stage may be rendered again. */
export const showSound = () => {
  const player = find('.stage .player');
  if (player?.dataset.sound !== 'true' || !isShown(player)) return;
  const video = getVideo('.stage video');
  const source = video.getAttribute('src');
  if (source !== loudness.source) {
    loudness.source = source;
    startWithSound(video);
  }
  const button = get('[data-player=sound]', HTMLButtonElement, player);
  const slider = input('[data-player=volume]', player);
  const words = (loudness.isRefused ? button.dataset.refusedWords : button.dataset.words) ?? '';
  button.setAttribute('aria-pressed', String(!video.muted));
  button.dataset.refused = String(loudness.isRefused);
  if (button.title !== words) button.title = button.ariaLabel = words;
  if (slider !== document.activeElement) slider.value = String(Math.round(100 * loudness.volume));
  slider.dataset.muted = String(video.muted);
  showWave(player, video, source ?? '');
};

const wave = { source: '', peaks: /** @type {Float32Array | null} */ (null), drawn: '' };

/** @param {HTMLElement} player @param {HTMLVideoElement} video @param {string} source */
const showWave = (player, video, source) => {
  const seconds = Number(player.dataset.frames) / Number(player.dataset.fps);
  if (wave.source !== source) {
    Object.assign(wave, { source, peaks: null });
    readPeaks(source, seconds).catch(() => {}); // a video with unreadable audio has no waveform
  }
  player.dataset.wave = String(wave.peaks !== null);
  if (wave.peaks) drawWave(get('canvas', HTMLCanvasElement, player), wave.peaks, Math.min(1, video.currentTime / seconds));
};

/** @param {string} source @param {number} seconds */
const readPeaks = async (source, seconds) => {
  const sound = await decodeSound(source, 48000);
  const peaks = peaksOf(channelsOf(sound), PEAKS, (seconds * sound.sampleRate) / PEAKS);
  if (wave.source === source) wave.peaks = peaks;
};

/** @param {HTMLCanvasElement} canvas @param {Float32Array} peaks @param {number} played The played share, from 0 to 1. */
const drawWave = (canvas, peaks, played) => {
  const scale = devicePixelRatio || 1;
  const style = getComputedStyle(canvas);
  const accent = style.getPropertyValue('--accent');
  const width = Math.round(canvas.clientWidth * scale);
  const height = Math.round(canvas.clientHeight * scale);
  const edge = Math.round(played * width);
  const state = [wave.source, width, height, edge, style.color, accent].join();
  if (state === wave.drawn && canvas.width === width) return;
  Object.assign(canvas, { width, height });
  const pen = canvas.getContext('2d');
  if (!pen) return;
  const step = 3 * scale;
  const bar = 2 * scale;
  for (let left = 0; left < width; left += step) {
    const first = Math.floor((left / width) * PEAKS);
    const end = Math.max(first + 1, Math.floor(((left + step) / width) * PEAKS));
    const tall = Math.max(bar, Math.max(...peaks.subarray(first, end)) * height);
    pen.fillStyle = left < edge ? accent : style.color;
    pen.fillRect(left, (height - tall) / 2, bar, tall);
  }
  pen.fillStyle = accent;
  pen.fillRect(Math.min(width - bar, edge), 0, bar, height);
  wave.drawn = state;
};

export const startSound = () => {
  // A new video on the stage is muted until the stage is visible.
  onFirst(document, 'loadstart', '.stage video', (/** @type {HTMLVideoElement} */ video) => {
    video.muted = true;
    loudness.source = '';
  });
  on(document, 'click', '[data-player=sound]', toggleSound);
  on(document, 'input', '[data-player=volume]', (/** @type {HTMLInputElement} */ field) => {
    const volume = Number(field.value) / 100;
    remember(volume === 0, volume);
    setLoudness(getVideo('.stage video'));
    showSound();
  });
};
