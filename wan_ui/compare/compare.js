// Compare: all videos follow the longest one, or the one that is heard; one may be wiped over another.
import { find, findAll, get, input, isShown, on, play, showText } from '../components/dom.js';
import { frameAt, timeOf } from '../stage/frames.js';
import { showPlaying } from '../stage/player.js';
import { heardVolume } from '../stage/sound.js';
import { correction } from './pace.js';

const videos = () =>
  findAll('.compare figure video').filter(
    /** @returns {video is HTMLVideoElement} */ video => video instanceof HTMLVideoElement && video.hasAttribute('src'),
  );
const heardVideo = () => videos().find(video => video.closest('figure')?.dataset.heard === 'true');

/** @param {HTMLVideoElement} video */
const duration = video => video.duration || 0;

/** The longest video; of those that are about as long, the one that is heard. */
const leader = () => {
  const all = videos();
  const longest = all.toSorted((one, other) => duration(other) - duration(one))[0];
  const heard = heardVideo();
  return heard && duration(heard) > duration(longest) - 0.05 ? heard : longest;
};

/** @param {HTMLVideoElement} video */
const fpsOf = video => Number(video.closest('figure')?.dataset.fps) || 16;

export const playTogether = () => {
  const isPaused = leader()?.paused;
  for (const video of videos()) isPaused ? play(video) : video.pause();
};

/** @param {number} seconds */
const seekTogether = seconds => {
  for (const video of videos()) video.currentTime = Math.min(seconds, Math.max(0, duration(video) - 0.01));
};

/** @param {number} by */
export const stepTogether = by => {
  const lead = leader();
  if (!lead) return;
  for (const video of videos()) video.pause();
  seekTogether(timeOf(frameAt(lead.currentTime, fpsOf(lead)) + by, fpsOf(lead)));
};

/** Keeps the videos together and shows where they are. Runs in every tick. */
export const followLeader = () => {
  const section = find('.compare');
  const lead = leader();
  if (!isShown(section) || !lead?.duration) return;
  if (lead.ended) {
    seekTogether(0);
    for (const video of videos()) play(video);
  }
  const heard = heardVideo();
  const isHeard = heard !== undefined && !heard.paused && !heard.ended && !heard.seeking;
  const pace = isHeard ? heard : lead;
  for (const video of videos()) {
    const own = {
      time: video === pace ? pace.currentTime : video.currentTime,
      duration: video === pace ? Infinity : duration(video),
    };
    const { speed, jump } = correction(own, { time: pace.currentTime, isHeard }, fpsOf(lead));
    if (video.playbackRate !== speed) video.playbackRate = speed;
    if (!video.seeking && jump !== null) video.currentTime = jump;
    if (video !== lead && video.paused !== lead.paused && !video.ended) lead.paused ? video.pause() : play(video);
  }
  const scrub = input('[data-compare=scrub]', section);
  if (scrub !== document.activeElement || !lead.paused)
    scrub.value = String(Math.round((1000 * lead.currentTime) / lead.duration));
  showText(get('.together output', HTMLOutputElement, section), `${lead.currentTime.toFixed(2)} s`);
  showPlaying(get('.together', HTMLElement, section), !lead.paused);
  showWipe(section);
};

const wipe = { isOn: false, left: 0, right: 1, edge: 50 };

/** @param {HTMLElement} section */
const showWipe = section => {
  const figures = findAll('figure', section);
  const isOn = wipe.isOn && figures.length > 1;
  section.dataset.wipe = String(isOn);
  figures.forEach((figure, place) => {
    const side = place === wipe.left ? 'left' : place === wipe.right ? 'right' : 'none';
    figure.dataset.side = isOn ? side : '';
  });
  section.style.setProperty('--edge', `${wipe.edge}%`);
  for (const side of /** @type {const} */ (['left', 'right'])) {
    const select = get(`[data-compare=${side}]`, HTMLSelectElement, section);
    select.hidden = !isOn;
    if (select !== document.activeElement) select.value = String(wipe[side]);
  }
  get('.edge', HTMLElement, section).hidden = !isOn;
  input('[data-compare=wipe]', section).checked = wipe.isOn;
};

// At most one video is heard, and none when another view is open. `tile` is its number from 1; 0: none.
const heard = { comparison: '', tile: 0 };

/** @param {number} tile */
export const hear = tile => {
  if (findAll('.compare figure')[tile - 1]?.dataset.sound !== 'true') return;
  heard.tile = heard.tile === tile ? 0 : tile;
  showHeard();
};

/** Shows which video is heard. Runs in every tick, because the comparison may be drawn again. */
export const showHeard = () => {
  const section = find('.compare');
  if (!section) return;
  const comparison = section.dataset.comparison ?? '';
  if (heard.comparison !== comparison) Object.assign(heard, { comparison, tile: 0 });
  findAll('figure', section).forEach((figure, place) => {
    const isHeard = place + 1 === heard.tile && figure.dataset.sound === 'true';
    const video = get('video', HTMLVideoElement, figure);
    figure.dataset.heard = String(isHeard);
    find('[data-compare=sound]', figure)?.setAttribute('aria-pressed', String(isHeard));
    video.volume = heardVolume();
    video.muted = !isHeard || !isShown(section);
  });
  const link = find('#compare-export');
  const wanted = heard.tile ? `?sound=${heard.tile}` : '';
  if (link instanceof HTMLAnchorElement && link.search !== wanted) link.search = wanted;
};

let started = '';

/** Starts a comparison once all of its videos can be played. Runs in every tick. */
export const startCompared = () => {
  const section = find('.compare');
  const state = `${section?.dataset.comparison} ${section?.dataset.done}`;
  if (!isShown(section) || state === started || !videos().every(video => video.readyState >= 2)) return;
  started = state;
  if (!section.dataset.comparison) return;
  if (section.dataset.original === 'true') Object.assign(wipe, { isOn: true, left: 0, right: 1 });
  seekTogether(0);
  for (const video of videos()) play(video);
};

export const startCompare = () => {
  on(document, 'click', target => {
    if (target.closest('[data-compare=play]') || target.matches('.compare figure video')) playTogether();
    const figure = /** @type {HTMLElement | null | undefined} */ (target.closest('[data-compare=sound]')?.closest('figure'));
    if (figure) hear(findAll('.compare figure').indexOf(figure) + 1);
  });
  on(document, 'input', target => {
    if (!(target instanceof HTMLInputElement || target instanceof HTMLSelectElement)) return;
    const name = target.dataset.compare;
    if (name === 'scrub') {
      for (const video of videos()) video.pause();
      const lead = leader();
      seekTogether((Number(target.value) / 1000) * (lead ? duration(lead) : 0));
    } else if (name === 'wipe' && target instanceof HTMLInputElement) wipe.isOn = target.checked;
    else if (name === 'left' || name === 'right') wipe[name] = Number(target.value);
    else if (target.matches('.compare .edge')) wipe.edge = Number(target.value);
  });
};
