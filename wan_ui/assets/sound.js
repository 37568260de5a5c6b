// The page's sound, after studio.js: how loud the stage is, its waveform, and which video of a comparison is heard. At first all
// is muted; what the visitor chooses is remembered in the browser. Attributes are set in every tick, because panels are redrawn.

const stored = Number(localStorage.getItem('studio-volume') ?? 0.8);
const loudness = {
  isMuted: localStorage.getItem('studio-muted') !== 'false',
  volume: stored >= 0 && stored <= 1 ? stored : 0.8,
  source: '',  // of the video on the stage that has been begun with this loudness
  isRefused: false,  // the browser does not let it begin with sound
};
const remember = (isMuted, volume) => {
  Object.assign(loudness, {isMuted, volume, isRefused: false});
  localStorage.setItem('studio-muted', isMuted);
  localStorage.setItem('studio-volume', volume);
};
const hasStageSound = () => $('.stage .player')?.dataset.sound === 'true';
const setLoudness = video => {
  video.volume = loudness.volume;
  video.muted = loudness.isMuted || loudness.volume === 0;
};
const toggleSound = () => {
  const video = $('.stage video');
  if (!isShown($('[data-player=sound]'))) return;
  remember(!video.muted, loudness.volume || 0.5);
  setLoudness(video);
  showSound();
};

// A video that is put on the stage is silent until it is seen there. Where the browser refuses sound, it plays without.
document.addEventListener('loadstart', event => {
  if (!event.target.matches('.stage video')) return;
  event.target.muted = true;
  loudness.source = '';
}, true);
const beginWithSound = async video => {
  loudness.isRefused = false;
  setLoudness(video);
  if (video.muted) return;
  try {
    await video.play();
  } catch (error) {
    if (error.name !== 'NotAllowedError') return;
    loudness.isRefused = video.muted = true;
    video.play().catch(() => {});
  }
};
const showSound = () => {
  const player = $('.stage .player'), video = $('.stage video');
  if (!hasStageSound() || !isShown(player)) return;
  const source = video.getAttribute('src');
  if (source !== loudness.source) {
    loudness.source = source;
    beginWithSound(video);
  }
  const button = $('[data-player=sound]', player), slider = $('[data-player=volume]', player);
  const words = loudness.isRefused ? button.dataset.refusedWords : button.dataset.words;
  button.setAttribute('aria-pressed', !video.muted);
  button.dataset.refused = loudness.isRefused;
  if (button.title !== words) button.title = button.ariaLabel = words;
  if (slider !== document.activeElement) slider.value = Math.round(100 * loudness.volume);
  slider.dataset.muted = video.muted;
  showWave(player, video, source);
};
document.addEventListener('click', event => { if (event.target.closest('[data-player=sound]')) toggleSound(); });
document.addEventListener('input', event => {
  if (event.target.dataset.player !== 'volume') return;
  remember(event.target.value === '0', Number(event.target.value) / 100);
  setLoudness($('.stage video'));
  showSound();
});

// The waveform: the loudest sample of both channels in each of many short times, in shares of the loudest of all.
const PEAKS = 800;
const QUIETEST = 0.02;  // a sound below this is drawn as small as it is
const wave = {source: '', peaks: null, drawn: ''};
const peaksOf = async (source, seconds) => {
  const bytes = await (await fetch(source)).arrayBuffer();
  const sound = await new OfflineAudioContext(1, 1, 48000).decodeAudioData(bytes);
  const peaks = new Float32Array(PEAKS), perPeak = seconds * sound.sampleRate / PEAKS;
  for (let channel = 0; channel < sound.numberOfChannels; channel++) {
    const samples = sound.getChannelData(channel), end = Math.min(samples.length, Math.floor(PEAKS * perPeak));
    for (let index = 0; index < end; index++) {
      const place = Math.floor(index / perPeak), height = Math.abs(samples[index]);
      if (height > peaks[place]) peaks[place] = height;
    }
  }
  const loudest = Math.max(QUIETEST, ...peaks);
  return peaks.map(peak => peak / loudest);
};
const showWave = (player, video, source) => {
  const seconds = Number(player.dataset.frames) / Number(player.dataset.fps);
  if (wave.source !== source) {
    Object.assign(wave, {source, peaks: null});
    peaksOf(source, seconds).then(peaks => { if (wave.source === source) wave.peaks = peaks; }).catch(() => {});
  }
  player.dataset.wave = !!wave.peaks;
  if (wave.peaks) drawWave($('canvas', player), Math.min(1, video.currentTime / seconds));
};
const drawWave = (canvas, played) => {
  const scale = devicePixelRatio || 1, style = getComputedStyle(canvas), accent = style.getPropertyValue('--accent');
  const width = Math.round(canvas.clientWidth * scale), height = Math.round(canvas.clientHeight * scale);
  const edge = Math.round(played * width), state = [wave.source, width, height, edge, style.color, accent].join();
  if (state === wave.drawn && canvas.width === width) return;
  Object.assign(canvas, {width, height});
  const pen = canvas.getContext('2d'), step = 3 * scale, bar = 2 * scale;
  for (let left = 0; left < width; left += step) {
    const first = Math.floor(left / width * PEAKS), end = Math.max(first + 1, Math.floor((left + step) / width * PEAKS));
    const tall = Math.max(bar, Math.max(...wave.peaks.subarray(first, end)) * height);
    pen.fillStyle = left < edge ? accent : style.color;
    pen.fillRect(left, (height - tall) / 2, bar, tall);
  }
  pen.fillStyle = accent;
  pen.fillRect(Math.min(width - bar, edge), 0, bar, height);
  wave.drawn = state;
};

// Compare: at most one video is heard, as loud as the stage, and none when another view is open.
const heard = {comparison: '', tile: 0};  // the tile's number from 1
const heardVideo = () => $('.compare figure[data-heard=true] video');
const hear = number => {
  if ($$('.compare figure')[number - 1]?.dataset.sound !== 'true') return;
  heard.tile = heard.tile === number ? 0 : number;
  showHeard();
};
const showHeard = () => {
  const section = $('.compare');
  if (!section) return;
  const comparison = section.dataset.comparison ?? '';
  if (heard.comparison !== comparison) Object.assign(heard, {comparison, tile: 0});
  $$('figure', section).forEach((figure, place) => {
    const isHeard = place + 1 === heard.tile && figure.dataset.sound === 'true', video = $('video', figure);
    figure.dataset.heard = isHeard;
    $('[data-compare=sound]', figure).setAttribute('aria-pressed', isHeard);
    video.volume = loudness.volume || 0.5;
    video.muted = !isHeard || !isShown(section);
  });
  const link = $('#compare-export'), wanted = heard.tile ? `?sound=${heard.tile}` : '';
  if (link && link.search !== wanted) link.search = wanted;
};
document.addEventListener('click', event => {
  const figure = event.target.closest('[data-compare=sound]')?.closest('figure');
  if (figure) hear($$('.compare figure').indexOf(figure) + 1);
});

// A recording is the visitor's sound only once it has been sent to the studio. Generate waits for that, and ends a recording that
// still runs; pressed again, it goes without.
let recording = '';  // "running", or "awaited" by Generate
window.studioRecording = told => {
  const isAwaited = recording === 'awaited';
  recording = told === 'begun' ? 'running' : '';
  if (isAwaited) $('#generate').removeAttribute('aria-busy');
  if (isAwaited && told === 'sent') setTimeout(() => $('#generate').click(), 0);
};
document.addEventListener('click', event => {
  if (!event.target.closest?.('#generate') || !recording) return;
  if (recording === 'awaited') return window.studioRecording('dropped');
  event.stopImmediatePropagation();
  recording = 'awaited';
  $('#generate').setAttribute('aria-busy', 'true');
  $$('#input-sound .stop-button, #input-sound .stop-button-paused').find(isShown)?.click();
}, true);
