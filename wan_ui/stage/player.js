// The stage's player: play and pause, single frames, and the slider.
import {
  fieldValue,
  find,
  findVideo,
  get,
  video as getVideo,
  input,
  isShown,
  on,
  showText,
  togglePlaying,
} from '../components/dom.js';
import { frameAt, frameBeside, timeOf } from './frames.js';

/** The stage's player with its video, if it is shown. */
const shownPlayer = () => {
  const player = find('.stage .player');
  if (!isShown(player)) return null;
  return { player, video: getVideo('.stage video'), fps: Number(player.dataset.fps), numFrames: Number(player.dataset.frames) };
};

export const toggleStage = () => togglePlaying(findVideo('.stage video'));

/** Pauses and shows the frame that is `by` frames away. @param {number} by */
export const stepStage = by => {
  const shown = shownPlayer();
  if (!shown) return;
  const { video, fps, numFrames } = shown;
  video.pause();
  video.currentTime = timeOf(frameBeside(frameAt(video.currentTime, fps, numFrames), by, numFrames), fps);
};

/** Shows where the player is. Runs in every tick. */
export const showStageTime = () => {
  const shown = shownPlayer();
  if (!shown) return;
  const { player, video, fps, numFrames } = shown;
  const frame = frameAt(video.currentTime, fps, numFrames);
  const scrub = input('[data-player=scrub]', player);
  if (scrub !== document.activeElement || !video.paused) scrub.value = String(frame);
  showText(get('output', HTMLOutputElement, player), `${frame + 1} / ${numFrames}`);
  showPlaying(player, !video.paused);
};

/** Makes the button of a bar say what a press does now. @param {HTMLElement} bar @param {boolean} isPlaying */
export const showPlaying = (bar, isPlaying) => {
  const button = get('.play-button', HTMLButtonElement, bar);
  const words = (isPlaying ? button.dataset.pauseWords : button.dataset.words) ?? '';
  bar.dataset.playing = String(isPlaying);
  if (button.title !== words) button.title = button.ariaLabel = words;
};

export const startPlayer = () => {
  on(document, 'click', target => {
    const button = /** @type {HTMLElement | null} */ (target.closest('[data-player]'));
    const name = button?.dataset.player;
    if (name === 'back' || name === 'forward') stepStage(name === 'back' ? -1 : 1);
    if (name === 'play' || target.matches('.stage video')) toggleStage();
    if (name === 'loop') {
      const video = getVideo('.stage video');
      video.loop = !video.loop;
      button?.setAttribute('aria-pressed', String(video.loop));
    }
  });
  on(document, 'input', target => {
    const shown = target.matches('[data-player=scrub]') && shownPlayer();
    if (!shown) return;
    shown.video.pause();
    shown.video.currentTime = timeOf(Number(fieldValue(target)), shown.fps);
  });
};
