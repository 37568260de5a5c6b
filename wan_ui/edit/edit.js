// The edit view's own script, run once by Gradio after `parts/talk.js` and the view's others (brush, keys, ways), with `element`,
// `watch`, `trigger` and `props`. A clip plays here from the visitor's own file; the server is sent the file once, and then says
// what it is and shows pictures of it.
const edit = {clip: null, start: 0, frames: 0, usual: 0, fits: false, moved: null, address: '', filled: '', turn: 0};

const limits = () => JSON.parse(find('#edit-preset')?.selectedOptions[0]?.dataset.limits ?? 'null');
const fill = (text, values) => text.replace(/\{(\w+)(:[^}]*)?\}/g, (_, name) => values[name]);

// The clip. One that is dropped while another is being read takes its place.
const take = async file => {
  if (!find('.clip')) return;
  const turn = ++edit.turn;
  note('');
  if (file.size > Number(words().bytes)) return note(words().large);
  busy(true);
  const path = await uploaded(file), clip = path && await send('/clip', {clip: path});
  if (turn !== edit.turn) return;
  busy(false);
  if (clip) show(clip, URL.createObjectURL(file), file.type === 'image/gif' || /\.gif$/i.test(file.name));
};
const busy = isBusy => {
  find('.edit').dataset.busy = isBusy;
  find('.clip .drop').textContent = isBusy ? words().reading : words().drop;
};
const show = (clip, address, isStill) => {
  if (edit.address) URL.revokeObjectURL(edit.address);
  Object.assign(edit, {clip, address, start: 0, frames: 0});
  find('.edit').dataset.clip = clip.name;
  find('.timeline').hidden = false;
  find('.thumbs').src = clip.thumbnails;
  const player = find('#edit-player'), still = find('.clip .still');
  for (const one of [player, still]) { one.hidden = true; one.removeAttribute('src'); }
  if (isStill) [still.src, still.hidden] = [address, false];
  else if (address) [player.src, player.hidden] = [address, false];
  find('.clip').style.setProperty('--ratio', clip.width / clip.height);
  const sound = clip.has_sound ? ` · ${words().sound}` : '';
  find('.timeline .facts').textContent = fill(words().facts, {...clip, seconds: clip.seconds.toFixed(1)}) + sound;
  for (const name of ['#edit-from', '#edit-to']) find(name).max = clip.seconds;
  chooseSize();
  proposeMargins();
  unpaint();
  part(0, limits().usual);
  chooseWay(wayOf());
};
// As many of the thumbnails as lie beside each other in their own shape, each cut to its place.
const drawFilm = () => {
  const sheet = find('.thumbs'), strip = find('.strip'), film = find('.film');
  if (!sheet?.naturalWidth || !strip.clientWidth) return;
  const count = Number(strip.dataset.count), [width, height] = [sheet.naturalWidth / count, sheet.naturalHeight];
  const scale = window.devicePixelRatio || 1;
  [film.width, film.height] = [strip.clientWidth * scale, strip.clientHeight * scale];
  const places = Math.max(1, Math.min(count, Math.round(film.width / film.height * height / width))), wide = film.width / places;
  const shape = Math.min(width / height, wide / film.height), [across, down] = [shape * height, shape * film.height / wide * height];
  for (let place = 0; place < places; place++) {
    const left = Math.floor((place + 0.5) * count / places) * width + (width - across) / 2;
    film.getContext('2d').drawImage(sheet, left, (height - down) / 2, across, down, place * wide, 0, wide, film.height);
  }
};
element.addEventListener('load', event => { if (event.target.matches?.('.thumbs')) drawFilm(); }, true);
window.addEventListener('resize', drawFilm);
// What the browser cannot play is still shown, by a thumbnail.
const cannotPlay = async () => {
  const thumbs = find('.thumbs'), still = find('.clip .still');
  if (!find('#edit-player').getAttribute('src')) return;
  find('#edit-player').hidden = true;
  try { await thumbs.decode(); } catch { return; }
  const count = Number(find('.strip').dataset.count), [width, height] = [thumbs.naturalWidth / count, thumbs.naturalHeight];
  const canvas = Object.assign(document.createElement('canvas'), {width, height});
  canvas.getContext('2d').drawImage(thumbs, Math.floor(count / 2) * width, 0, width, height, 0, 0, width, height);
  [still.src, still.hidden] = [canvas.toDataURL('image/jpeg'), false];
};

// The part. Frames are counted at the model's own rate, and only so many are taken as it can make: 4n+1. The handles go there. The
// first one moves the part, the last one makes it longer and shorter.
// Where the clip goes on, its part may have any length.
const counts = () => wayOf() === 'extend' ? {...limits(), step: 1, first: 1, least: 1, most: Infinity} : limits();
const rounding = () => Number(find('.strip').dataset.rounding);
const most = start => Math.min(counts().most, Math.floor((edit.clip.seconds - start) * limits().fps + rounding()));
const latestStart = frames => edit.clip.seconds - (frames - rounding()) / limits().fps;
const partEnd = () => edit.start + edit.frames / limits().fps;
const fitting = (count, start) => {
  const {step, first, least} = counts(), highest = most(start);
  const nearest = first + step * Math.round((count - first) / step);
  return Math.max(least, Math.min(nearest, first + step * Math.floor((highest - first) / step)));
};
const part = (start, count) => {
  const {fps, least, title} = counts(), {seconds} = edit.clip;
  const last = Math.max(0, latestStart(least));
  edit.start = Math.floor(100 * Math.min(Math.max(0, start), last)) / 100;
  edit.frames = fitting(count, edit.start);
  edit.fits = most(edit.start) >= least;
  const end = partEnd();
  if (!edit.fits) note(fill(words().short, {model: title, frames: least, seconds: (least / fps).toFixed(2)}));
  showMake();
  showOverlap();
  find('#edit-from').value = edit.start;
  find('#edit-to').value = end;
  const strip = find('.strip');
  strip.style.setProperty('--from', `${100 * edit.start / seconds}%`);
  strip.style.setProperty('--to', `${100 * Math.min(1, end / seconds)}%`);
  find('#edit-part').textContent = fill(words().part, {
    start: edit.start.toFixed(2), end: end.toFixed(2), frames: edit.frames, fps, length: (edit.frames / fps).toFixed(2),
  });
  estimate();
  const player = find('#edit-player');
  if (!player.hidden && (player.currentTime < edit.start || player.currentTime > end)) player.currentTime = edit.start;
  play(brush.plays);
};
element.addEventListener('input', event => {
  if (!edit.clip) return;
  const {fps} = limits(), {id} = event.target, value = Number(event.target.value);
  if (id === 'edit-from') part(value, edit.frames);
  if (id === 'edit-to') part(edit.start, Math.round((value - edit.start) * fps));
});
// The whole part is moved by its middle.
let held = null;
element.addEventListener('pointerdown', event => {
  if (!event.target.matches('.taken') || !edit.clip) return;
  try { event.target.setPointerCapture(event.pointerId); } catch { /* the pointer is gone already */ }
  held = {x: event.clientX, start: edit.start};
});
element.addEventListener('pointermove', event => {
  if (!held) return;
  const start = held.start + (event.clientX - held.x) / find('.strip').clientWidth * edit.clip.seconds;
  part(Math.min(start, latestStart(edit.frames)), edit.frames);
});
for (const kind of ['pointerup', 'pointercancel']) element.addEventListener(kind, () => { held = null; });
// The player stays in the part; a line shows where it is.
const follow = () => {
  requestAnimationFrame(follow);
  const player = find('#edit-player');
  if (!edit.clip || !player || player.hidden || element.offsetParent === null) return;
  if (!player.seeking && (player.currentTime >= partEnd() || player.ended)) {
    player.currentTime = edit.start;
    play(brush.plays);
  }
  find('.strip').style.setProperty('--now', `${100 * player.currentTime / edit.clip.seconds}%`);
};
requestAnimationFrame(follow);

// The settings of the chosen model, and a way that it can go.
const choosePreset = (way = wayOf()) => {
  const own = limits();
  if (!own) return;
  find('#edit-steps').value = own.steps;
  [find('#edit-guidance').value, find('#edit-guidance-low').value] = [own.guidance[0], own.guidance.at(-1)];
  find('#edit-guidance-low').closest('label').hidden = own.guidance.length < 2;
  find('#edit-negative').value = own.negative;
  find('#edit-size').replaceChildren(...own.sizes.map(([width, height]) => new Option(`${width} × ${height}`, `${width}x${height}`)));
  chooseSize();
  showStrength();
  if (edit.frames === edit.usual) edit.frames = own.usual;  // nobody has asked for another length
  edit.usual = own.usual;
  showLengths();
  proposeMargins();
  chooseWay(own.ways.includes(way) ? way : own.ways[0]);
};
// The size whose shape is nearest to the clip's.
const chooseSize = () => {
  const own = limits();
  if (!own || !edit.clip) return;
  const shape = ([width, height]) => Math.abs(Math.log(width / height * edit.clip.height / edit.clip.width));
  const best = own.sizes.reduce((found, size) => shape(size) < shape(found) - 1e-6 ? size : found);
  find('#edit-size').value = best.join('x');
};
const showStrength = () => {
  const strength = Number(find('#edit-strength').value), steps = Number(find('#edit-steps').value);
  const count = Math.min(Math.trunc(steps * strength), steps);
  find('.strength output').textContent = `${strength.toFixed(2)} · ${fill(words().done, {count, steps})}`;
};
element.addEventListener('input', event => {
  if (['edit-strength', 'edit-steps'].includes(event.target.id)) showStrength();
  if (event.target.closest('.asked') && event.target.id !== 'edit-prompt') estimate();
});
element.addEventListener('change', event => {
  if (event.target.id === 'edit-preset') choosePreset();
  if (event.target.id === 'edit-file' && event.target.files.length) {
    take(event.target.files[0]);
    event.target.value = '';
  }
});

const asked = mask => {
  const number = id => find(id).value === '' ? null : Number(find(id).value), own = limits();
  const [width, height] = find('#edit-size').value.split('x').map(Number);
  const guidance = [number('#edit-guidance'), number('#edit-guidance-low')].slice(0, own.guidance.length);
  return {
    preset: find('#edit-preset').value, prompt: find('#edit-prompt').value, negative_prompt: find('#edit-negative').value,
    ...wayAsked(mask), width, height, steps: number('#edit-steps'), seed: number('#edit-seed'),
    guidance: guidance.includes(null) ? null : guidance,
  };
};
const make = async () => {
  const button = find('#edit-make');
  if (!isWhole()) return;
  button.disabled = true;
  const mask = wayOf() === 'paint' ? await maskPath() : undefined;
  const given = mask === '' ? note(words().unpainted) : mask !== null && await send('', asked(mask));
  button.disabled = false;
  if (given) trigger('queued', {what: 'queued', job: given.job});
};
// How long it will take, asked again when nothing has changed for a moment.
let waiting = 0;
const estimate = () => {
  clearTimeout(waiting);
  waiting = setTimeout(async () => {
    const line = find('.edit-estimate');
    if (!line || !isWhole()) return line?.replaceChildren();
    try {
      const answer = await fetch('studio/edit/estimate', {
        method: 'POST', headers: {'content-type': 'application/json'}, body: JSON.stringify(asked()),
      });
      line.innerHTML = (await answer.json()).html ?? '';  // words of the server's own
    } catch { line.textContent = ''; }
  }, 300);
};
element.addEventListener('click', event => {
  if (event.target.id === 'edit-make') make();
  if (event.target.id === 'edit-stop') event.target.dataset.job = document.querySelector('.stage')?.dataset.job ?? '';
  if (event.target.id === 'edit-player') event.target.paused ? event.target.play().catch(() => {}) : event.target.pause();
});
element.addEventListener('error', event => { if (event.target.id === 'edit-player') cannotPlay(); }, true);
window.studioClip = takeAny;

// The page was opened, or an earlier video's settings are to be shown again.
const open = () => {
  const text = find('.edit')?.dataset.fill ?? 'null', given = JSON.parse(text);
  if (!find('.edit')?.dataset.clip) edit.clip = null;  // the view is new
  choosePreset();
  if (!given || text === edit.filled) return;
  edit.filled = text;
  const picker = find('#edit-preset');
  if ([...picker.options].some(option => option.value === given.preset)) picker.value = given.preset;
  choosePreset();
  const address = given.clip && `gradio_api/file=${given.clip.path.split('/').map(encodeURIComponent).join('/')}`;
  if (given.clip) show(given.clip, address, /\.gif$/i.test(given.clip.name));
  const own = `${given.width}x${given.height}`;
  if (picker.value === given.preset && ![...find('#edit-size').options].some(option => option.value === own))
    find('#edit-size').add(new Option(`${given.width} × ${given.height}`, own));
  const strength = given.strength ?? find('#edit-strength').defaultValue;
  for (const [id, value] of [['prompt', given.prompt], ['negative', given.negative_prompt], ['strength', strength],
    ['steps', given.steps], ['seed', given.seed], ['guidance', given.guidance[0]], ['guidance-low', given.guidance.at(-1)],
    ['size', own]]) find(`#edit-${id}`).value = value;
  if (!find('#edit-size').value) chooseSize();  // another model, which does not offer it
  showStrength();
  showWay(given);
  if (given.clip) part(given.start, Math.round((given.end - given.start) * limits().fps));
};
watch('value', open);
open();
