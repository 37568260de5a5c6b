// The compare view: all videos follow the longest or the audible video. A wipe shows two videos in one frame.
import { find, findAll, get, input, isShown, on, play, showText } from '../components/dom.js';
import { frameAtTime, timeOfFrame } from '../stage/frames.js';
import { showPlaying } from '../stage/player.js';
import { audibleVolume } from '../stage/sound.js';
import { correctPlayback } from './pace.js';

const videos = () =>
  findAll('.compare figure video').filter(
    /** @returns {video is HTMLVideoElement} */ video => video instanceof HTMLVideoElement && video.hasAttribute('src'),
  );
const audibleVideo = () => videos().find(video => video.closest('figure')?.dataset.heard === 'true');

/** @param {HTMLVideoElement} video */
const duration = video => video.duration || 0;

/** Returns the audible video if it is about as long as the longest video, else the longest video. */
const findLeader = () => {
  const all = videos();
  const longest = all.toSorted((one, other) => duration(other) - duration(one))[0];
  const audible = audibleVideo();
  return audible && duration(audible) > duration(longest) - 0.05 ? audible : longest;
};

/** @param {HTMLVideoElement} video */
const videoFps = video => Number(video.closest('figure')?.dataset.fps) || 16;

export const playTogether = () => {
  const isPaused = findLeader()?.paused;
  for (const video of videos()) isPaused ? play(video) : video.pause();
};

/** @param {number} seconds */
const seekTogether = seconds => {
  for (const video of videos()) video.currentTime = Math.min(seconds, Math.max(0, duration(video) - 0.01));
};

/** @param {number} by */
export const stepTogether = by => {
  const lead = findLeader();
  if (!lead) return;
  for (const video of videos()) video.pause();
  seekTogether(timeOfFrame(frameAtTime(lead.currentTime, videoFps(lead)) + by, videoFps(lead)));
};

/** Synchronizes the videos and shows their time. Runs in every tick of `studio.js`. */
export const followLeader = () => {
  const section = find('.compare');
  const lead = findLeader();
  if (!isShown(section) || !lead?.duration) return;
  if (lead.ended) {
    seekTogether(0);
    for (const video of videos()) play(video);
  }
  const audible = audibleVideo();
  const isAudible = audible !== undefined && !audible.paused && !audible.ended && !audible.seeking;
  const pace = isAudible ? audible : lead;
  for (const video of videos()) {
    const own = {
      time: video === pace ? pace.currentTime : video.currentTime,
      duration: video === pace ? Infinity : duration(video),
    };
    const { speed, jump } = correctPlayback(own, { time: pace.currentTime, isAudible }, videoFps(lead));
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

// At most one video is audible, and none while another view is open. `tile` is the number of the audible video from 1, or 0.
const audible = { comparison: '', tile: 0 };

/** @param {number} tile */
export const toggleAudio = tile => {
  if (findAll('.compare figure')[tile - 1]?.dataset.sound !== 'true') return;
  audible.tile = audible.tile === tile ? 0 : tile;
  showAudibleVideo();
};

/** Shows which video is audible. Runs in every tick of `studio.js`, because the comparison may be rendered again. */
export const showAudibleVideo = () => {
  const section = find('.compare');
  if (!section) return;
  const comparison = section.dataset.comparison ?? '';
  if (audible.comparison !== comparison) Object.assign(audible, { comparison, tile: 0 });
  findAll('figure', section).forEach((figure, place) => {
    const isAudible = place + 1 === audible.tile && figure.dataset.sound === 'true';
    const video = get('video', HTMLVideoElement, figure);
    figure.dataset.heard = String(isAudible);
    find('[data-compare=sound]', figure)?.setAttribute('aria-pressed', String(isAudible));
    video.volume = audibleVolume();
    video.muted = !isAudible || !isShown(section);
  });
  const link = find('#compare-export');
  const wanted = audible.tile ? `?sound=${audible.tile}` : '';
  if (link instanceof HTMLAnchorElement && link.search !== wanted) link.search = wanted;
};

let started = '';

/** Starts a comparison when all of its videos can play. Runs in every tick of `studio.js`. */
export const startLoadedComparison = () => {
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
    if (figure) toggleAudio(findAll('.compare figure').indexOf(figure) + 1);
  });
  on(document, 'input', target => {
    if (!(target instanceof HTMLInputElement || target instanceof HTMLSelectElement)) return;
    const name = target.dataset.compare;
    if (name === 'scrub') {
      for (const video of videos()) video.pause();
      const lead = findLeader();
      seekTogether((Number(target.value) / 1000) * (lead ? duration(lead) : 0));
    } else if (name === 'wipe' && target instanceof HTMLInputElement) wipe.isOn = target.checked;
    else if (name === 'left' || name === 'right') wipe[name] = Number(target.value);
    else if (target.matches('.compare .edge')) wipe.edge = Number(target.value);
  });
};
