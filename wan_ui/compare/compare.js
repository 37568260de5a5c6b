// The compare view: all videos follow the longest or the audible video. A wipe shows two videos in one frame.
import { find, findAll, get, input, isShown, on, play, showText } from '../components/dom.js';
import { frameAtTime, timeOfFrame } from '../stage/frames.js';
import { showPlaying } from '../stage/player.js';
import { audibleVolume } from '../stage/sound.js';
import { correctPlayback } from './pace.js';

const videos = () => /** @type {HTMLVideoElement[]} */ (findAll('.compare figure video[src]'));
const audibleVideo = () => videos().find(video => video.closest('figure')?.dataset.heard === 'true');

const duration = (/** @type {HTMLVideoElement} */ video) => video.duration || 0;

/** Returns the audible video if it is about as long as the longest video, else the longest video. */
const findLeader = () => {
  const longest = videos().toSorted((one, other) => duration(other) - duration(one))[0];
  const audible = audibleVideo();
  return audible && duration(audible) > duration(longest) - 0.05 ? audible : longest;
};

const videoFps = (/** @type {HTMLVideoElement} */ video) => Number(video.closest('figure')?.dataset.fps) || 16;

/** @param {boolean} [isPaused] */
const setPlaying = isPaused => {
  for (const video of videos()) isPaused ? play(video) : video.pause();
};
export const playTogether = () => setPlaying(findLeader()?.paused);

const seekTogether = (/** @type {number} */ seconds) => {
  for (const video of videos()) video.currentTime = Math.min(seconds, Math.max(0, duration(video) - 0.01));
};

export const stepTogether = (/** @type {number} */ by) => {
  const lead = findLeader();
  if (!lead) return;
  setPlaying(false);
  seekTogether(timeOfFrame(frameAtTime(lead.currentTime, videoFps(lead)) + by, videoFps(lead)));
};

/** Synchronizes the videos and shows their time. Runs in every tick of `studio.js`. */
export const followLeader = () => {
  const section = find('.compare');
  const lead = findLeader();
  if (!isShown(section) || !lead?.duration) return;
  if (lead.ended) startTogether();
  const audible = audibleVideo();
  const isAudible = audible !== undefined && !audible.paused && !audible.ended && !audible.seeking;
  const pace = isAudible ? audible : lead;
  for (const video of videos()) {
    const own = { time: video.currentTime, duration: video === pace ? Infinity : duration(video) };
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

const showWipe = (/** @type {HTMLElement} */ section) => {
  const figures = findAll('figure', section);
  const isOn = wipe.isOn && figures.length > 1;
  section.dataset.wipe = String(isOn);
  for (const [place, { dataset }] of figures.entries()) {
    const side = place === wipe.left ? 'left' : place === wipe.right ? 'right' : 'none';
    dataset.side = isOn ? side : '';
  }
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

export const toggleAudio = (/** @type {number} */ tile) => {
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
  for (const [place, figure] of findAll('figure', section).entries()) {
    const isAudible = place + 1 === audible.tile && figure.dataset.sound === 'true';
    const video = get('video', HTMLVideoElement, figure);
    figure.dataset.heard = String(isAudible);
    find('[data-compare=sound]', figure)?.setAttribute('aria-pressed', String(isAudible));
    video.volume = audibleVolume();
    video.muted = !isAudible || !isShown(section);
  }
  const link = /** @type {HTMLAnchorElement | null} */ (find('#compare-export'));
  const wanted = audible.tile ? `?sound=${audible.tile}` : '';
  if (link && link.search !== wanted) link.search = wanted;
};

const startTogether = () => {
  seekTogether(0);
  setPlaying(true);
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
  startTogether();
};

export const startCompare = () => {
  on(document, 'click', '[data-compare=play], .compare figure video', playTogether);
  on(document, 'click', '.compare figure [data-compare=sound]', button =>
    toggleAudio(findAll('.compare figure').findIndex(figure => figure.contains(button)) + 1),
  );
  on(document, 'input', '[data-compare], .compare .edge', (/** @type {HTMLInputElement} */ { checked, dataset, value }) => {
    const name = dataset.compare;
    if (name === 'scrub') {
      setPlaying(false);
      const lead = findLeader();
      seekTogether((Number(value) / 1000) * (lead ? duration(lead) : 0));
    } else if (name === 'wipe') wipe.isOn = checked;
    else if (name === 'left' || name === 'right') wipe[name] = Number(value);
    else wipe.edge = Number(value);
  });
};
