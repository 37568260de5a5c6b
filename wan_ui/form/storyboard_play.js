// Plays the whole film: finished shots with fades and soundtrack, and a card for each unfinished shot. Two players alternate, so that
// the next shot is loaded before it starts.
import { fieldValue, findAll, get, on, play as playMedia } from '../components/dom.js';
import { clamp } from '../components/text.js';
import { drawnSeconds, fadeSeconds, isKept, startSeconds, startTimes, trackVolume } from './storyboard_shots.js';

/** @typedef {{from: number, to: number, fade: number, index: number, prompt: string, source: string, begin: number, picture: string}} Part */

/** @param {import('../components/http.js').ViewClient} client @param {import('./storyboard_shots.js').Film} film */
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
  /** @param {number} moment */
  const partAt = moment =>
    Math.max(
      0,
      parts.findLastIndex(part => part.from <= moment),
    );

  const open = () => {
    const starts = startTimes(film);
    parts = film.shots.map((shot, index) => {
      const kept = isKept(film, shot) ? shot : null;
      return {
        from: starts[index],
        to: starts[index] + drawnSeconds(film, shot),
        fade: fadeSeconds(film, shot),
        index,
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
    resume();
    root().scrollIntoView({ block: 'nearest' });
  };
  const close = () => {
    pause();
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
  /** @param {number} moment */
  const seek = moment => {
    time = clamp(moment, 0, Math.max(0, end() - 0.01));
    shown = -1;
    for (const player of players()) player.pause();
    if (film.track) audio().currentTime = Math.max(0, time - film.track.start);
    step();
  };
  const step = () => {
    const at = partAt(time);
    const part = parts[at];
    if (!part) return;
    const player = prepared(at);
    if (at !== shown) {
      shown = at;
      const wanted = part.begin + time - part.from;
      if (player && Math.abs(player.currentTime - wanted) > 0.15) player.currentTime = wanted;
      showCard(part);
    }
    const share = part.fade ? Math.min(1, (time - part.from) / part.fade) : 1;
    players().forEach((other, place) => {
      const isOwn = other === player;
      const isBefore = at > 0 && place === (at - 1) % 2 && share < 1 && parts[at - 1].source !== '';
      other.style.opacity = String(isOwn ? share : isBefore ? 1 : 0);
      other.style.zIndex = isOwn ? '1' : '0';
      const isHeard = (isOwn || isBefore) && isPlaying;
      if (isHeard && other.paused) playMedia(other);
      if (!isHeard && !other.paused) other.pause();
      other.volume = Math.max(0, isOwn ? share : 1 - share);
    });
    if (share >= 1) prepared(at + 1);
    followTrack();
    showTime();
  };
  const showTime = () => {
    const text = `${time.toFixed(1)} / ${end().toFixed(1)} s`;
    const slider = get('input', HTMLInputElement, root());
    const output = get('output', HTMLOutputElement, root());
    if (slider !== document.activeElement || isPlaying) slider.value = String(end() ? (1000 * time) / end() : 0);
    if (output.textContent !== text) output.textContent = text;
  };
  /** @param {Part} part */
  const showCard = part => {
    const card = get('p', HTMLParagraphElement, root());
    card.hidden = part.source !== '';
    card.textContent = `${part.index + 1}  ${part.prompt}`;
    card.style.backgroundImage = part.picture ? `url("${part.picture}")` : '';
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
  /** @param {number} now */
  const tick = now => {
    if (!isPlaying || !element.isConnected) return;
    const isWaiting = players().some(
      player => player.dataset.part === String(shown) && player.readyState < 2 && player.hasAttribute('src'),
    );
    if (!isWaiting) time += Math.min(0.1, (now - last) / 1000);
    last = now;
    if (time >= end()) {
      seek(0);
      return pause();
    }
    step();
    requestAnimationFrame(tick);
  };
  const resume = () => {
    isPlaying = true;
    last = performance.now();
    showButton();
    requestAnimationFrame(tick);
  };
  const pause = () => {
    isPlaying = false;
    for (const player of players()) player.pause();
    audio().pause();
    showButton();
  };
  const showButton = () => {
    root().dataset.playing = String(isPlaying);
    one('.film-player [data-shot=pause]').textContent = isPlaying ? words().pause : words().play;
  };
  on(element, 'click', target => {
    const what = /** @type {HTMLElement | null} */ (target.closest('[data-shot]'))?.dataset.shot;
    if (what === 'play') open();
    if (what === 'pause') isPlaying ? pause() : resume();
    if (what === 'close') close();
  });
  on(element, 'input', target => {
    if (target.closest('.film-bar')) seek((Number(fieldValue(target)) / 1000) * end());
  });
};
