// The stage's player: play and pause, single frames, and the slider.
import { find, findVideo, get, video as getVideo, input, isShown, on, showText, togglePlaying } from '../components/dom.js';
import { frameAtTime, timeOfFrame, wrapFrame } from './frames.js';

/** Returns the stage's player with its video, null if it is not shown. */
const shownPlayer = () => {
  const player = find('.stage .player');
  if (!isShown(player)) return null;
  return { player, video: getVideo('.stage video'), fps: Number(player.dataset.fps), numFrames: Number(player.dataset.frames) };
};

export const toggleStage = () => togglePlaying(findVideo('.stage video'));

/** Pauses the video and shows the frame that is `by` frames away. @param {number} by */
export const stepStage = by => {
  const shown = shownPlayer();
  if (!shown) return;
  const { video, fps, numFrames } = shown;
  video.pause();
  video.currentTime = timeOfFrame(wrapFrame(frameAtTime(video.currentTime, fps, numFrames), by, numFrames), fps);
};

/** Shows the player's current frame. Runs in every tick of `studio.js`. */
export const showStageTime = () => {
  const shown = shownPlayer();
  if (!shown) return;
  const { player, video, fps, numFrames } = shown;
  const frame = frameAtTime(video.currentTime, fps, numFrames);
  const scrub = input('[data-player=scrub]', player);
  if (scrub !== document.activeElement || !video.paused) scrub.value = String(frame);
  showText(get('output', HTMLOutputElement, player), `${frame + 1} / ${numFrames}`);
  showPlaying(player, !video.paused);
};

/** Labels the play button with its present effect: play or pause. @param {HTMLElement} bar @param {boolean} isPlaying */
export const showPlaying = (bar, isPlaying) => {
  const button = get('.play-button', HTMLButtonElement, bar);
  const words = (isPlaying ? button.dataset.pauseWords : button.dataset.words) ?? '';
  bar.dataset.playing = String(isPlaying);
  if (button.title !== words) button.title = button.ariaLabel = words;
};

export const startPlayer = () => {
  on(document, 'click', '[data-player=back]', () => stepStage(-1));
  on(document, 'click', '[data-player=forward]', () => stepStage(1));
  on(document, 'click', '[data-player=play], .stage video', toggleStage);
  on(document, 'click', '[data-player=loop]', button => {
    const video = getVideo('.stage video');
    video.loop = !video.loop;
    button.setAttribute('aria-pressed', String(video.loop));
  });
  on(document, 'input', '[data-player=scrub]', (/** @type {HTMLInputElement} */ { value }) => {
    const shown = shownPlayer();
    if (!shown) return;
    shown.video.pause();
    shown.video.currentTime = timeOfFrame(Number(value), shown.fps);
  });
};
