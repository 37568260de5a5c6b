// Plays the whole film: finished shots with fades and soundtrack, and a card for each unfinished shot. Two players alternate, so that
// the next shot is loaded before it starts.
import { findAll, get, on, play as playMedia, showText } from '../components/dom.js';
import { clamp } from '../components/text.js';
import { drawnSeconds, fadeSeconds, isKept, startSeconds, startTimes, trackVolume } from './storyboard_shots.js';

/** @typedef {{from: number, to: number, fade: number, prompt: string, source: string, begin: number, picture: string}} Part */

/** @param {ViewClient} client @param {import('./storyboard_shots.js').Film} film */
export const startStoryboardPlayer = ({ element, words, one }, film) => {
  /** @type {Part[]} */
  let parts = [];
  let time = 0;
  let last = 0;
  let isPlaying = false;
  let shown = -1;

  const root = () => one('.film-player');
  const players = () => /** @type {HTMLVideoElement[]} */ (findAll('video', root()));
  const audio = () => get('audio', HTMLAudioElement, root());
  const end = () => parts.at(-1)?.to ?? 0;

  const open = () => {
    const starts = startTimes(film);
    parts = film.shots.map((shot, index) => {
      const kept = isKept(film, shot) ? shot : null;
      return {
        from: starts[index],
        to: starts[index] + drawnSeconds(film, shot),
        fade: fadeSeconds(film, shot),
        prompt: shot.prompt,
        source: kept ? kept.made.video : '',
        begin: kept ? startSeconds(kept) : 0,
        picture: (shot.start === 'image' && shot.image?.url) || '',
      };
    });
    if (!parts.length) return;
    root().hidden = false;
    for (const player of players()) {
      player.removeAttribute('src');
      player.dataset.part = '';
    }
    seek(0);
    setPlaying(true);
    root().scrollIntoView({ block: 'nearest' });
  };
  const close = () => {
    setPlaying(false);
    root().hidden = true;
    for (const player of players()) {
      player.removeAttribute('src');
      player.load();
    }
  };
  /** Loads a part into its player and returns the player, null for an unfinished part. @param {number} index */
  const prepared = index => {
    const part = parts[index];
    const player = players()[index % 2];
    if (!part?.source) return null;
    if (player.dataset.part !== String(index)) {
      player.dataset.part = String(index);
      player.src = part.source;
      player.currentTime = part.begin;
    }
    return player;
  };
  const seek = (/** @type {number} */ moment) => {
    time = clamp(moment, 0, Math.max(0, end() - 0.01));
    shown = -1;
    for (const player of players()) player.pause();
    if (film.track) audio().currentTime = Math.max(0, time - film.track.start);
    step();
  };
  const step = () => {
    const found = parts.findLastIndex(part => part.from <= time);
    const at = Math.max(0, found);
    const part = parts[at];
    if (!part) return;
    const player = prepared(at);
    if (at !== shown) {
      shown = at;
      const wanted = part.begin + time - part.from;
      if (player && Math.abs(player.currentTime - wanted) > 0.15) player.currentTime = wanted;
      const card = get('p', HTMLParagraphElement, root());
      card.hidden = part.source !== '';
      card.textContent = `${at + 1}  ${part.prompt}`;
      card.style.backgroundImage = part.picture ? `url("${part.picture}")` : '';
    }
    const share = part.fade ? Math.min(1, (time - part.from) / part.fade) : 1;
    for (const [place, other] of players().entries()) {
      const isOwn = other === player;
      const isBefore = at > 0 && place === (at - 1) % 2 && share < 1 && parts[at - 1].source !== '';
      other.style.opacity = String(isOwn ? share : isBefore ? 1 : 0);
      other.style.zIndex = isOwn ? '1' : '0';
      const isHeard = (isOwn || isBefore) && isPlaying;
      if (isHeard && other.paused) playMedia(other);
      if (!isHeard && !other.paused) other.pause();
      other.volume = Math.max(0, isOwn ? share : 1 - share);
    }
    if (share >= 1) prepared(at + 1);
    followTrack();
    const slider = get('input', HTMLInputElement, root());
    if (slider !== document.activeElement || isPlaying) slider.value = String(end() ? (1000 * time) / end() : 0);
    showText(get('output', HTMLOutputElement, root()), `${time.toFixed(1)} / ${end().toFixed(1)} s`);
  };
  /** Keeps the soundtrack synchronous with the film. */
  const followTrack = () => {
    const { track } = film;
    const sound = audio();
    if (!track) return;
    const heard = time - track.start;
    const left = Math.min(sound.duration || Infinity, end() - track.start) - heard;
    sound.volume = trackVolume(track, heard, left);
    if (!isPlaying || heard < 0 || left <= 0) return sound.pause();
    if (Math.abs(sound.currentTime - heard) > 0.25) sound.currentTime = heard;
    if (sound.paused) playMedia(sound);
  };
  const tick = (/** @type {number} */ now) => {
    if (!isPlaying || !element.isConnected) return;
    const isWaiting = players().some(
      player => player.dataset.part === String(shown) && player.readyState < 2 && player.hasAttribute('src'),
    );
    if (!isWaiting) time += Math.min(0.1, (now - last) / 1000);
    last = now;
    if (time >= end()) {
      seek(0);
      return setPlaying(false);
    }
    step();
    requestAnimationFrame(tick);
  };
  const setPlaying = (/** @type {boolean} */ plays) => {
    isPlaying = plays;
    root().dataset.playing = String(isPlaying);
    one('.film-player [data-shot=pause]').textContent = isPlaying ? words().pause : words().play;
    if (isPlaying) {
      last = performance.now();
      requestAnimationFrame(tick);
    } else for (const media of [...players(), audio()]) media.pause();
  };
  on(element, 'click', '[data-shot=play]', open);
  on(element, 'click', '[data-shot=pause]', () => setPlaying(!isPlaying));
  on(element, 'click', '[data-shot=close]', close);
  on(element, 'input', '.film-bar input', (/** @type {HTMLInputElement} */ { value }) => seek((Number(value) / 1000) * end()));
};
