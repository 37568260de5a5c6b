// The live view's own script, run once by Gradio after `parts/talk.js`, with `element` and `watch`. Frames are drawn at the video's own
// speed; what is pressed and said goes to the server at once.
const live = {job: '', frames: [], fps: 16, block: 4, due: 0, drawn: [], ended: true, held: [], stream: null, asked: 0,
  isDrawing: false};

const show = () => {
  const option = find('#live-preset')?.selectedOptions[0];
  if (!option) return;
  const actions = option.dataset.actions.split(' ').filter(Boolean);
  for (const button of element.querySelectorAll('[data-steer]')) button.hidden = !actions.includes(button.dataset.steer);
  const isOn = !live.ended;
  find('#live-start').hidden = isOn;
  for (const name of ['#live-stop', '#live-say']) find(name).hidden = !isOn;
  const {tasks, reads} = option.dataset, looks = actions.some(name => name.startsWith('look-'));
  find('.picture').hidden = isOn || !tasks.includes('i2v');
  find('.picture span').textContent = tasks.includes('t2v') ? words().picture_may : words().picture;
  find('.wide').hidden = reads === 'false';
  if (reads === 'false') find('#live-say').hidden = true;
  if (live.ended && !live.drawn.length) find('.veil').textContent = looks ? words().drag : words().start_hint;
  find('#live-canvas').classList.toggle('looks', isOn && looks);
  find('#live-preset').disabled = isOn;
  find('.live').dataset.on = isOn;
  find('.dot').hidden = !isOn || !live.drawn.length;
};

const chosen = () => find('#live-preset').selectedOptions[0].dataset;
// The first prompt is the model's example: in its own words where they are the page's language, else as a caption in the empty field,
// in whose place the example comes once it is sent.
const offer = () => {
  const {example, caption} = chosen(), field = find('#live-prompt');
  if (!field.dataset.typed) field.value = caption === example ? example : '';  // what a person has typed stays
  field.placeholder = caption;
};
element.addEventListener('input', ({target}) => { if (target.id === 'live-prompt') target.dataset.typed = target.value.trim(); });

const begin = job => {
  Object.assign(live, {job, frames: [], due: 0, drawn: [], ended: false, held: []});
  find('.live').dataset.job = job;
  find('.veil').hidden = false;
  find('.headline').textContent = find('.numbers').textContent = '';
  show();
  listen(job);
};

// Packets of the stream: see `wan_ui.live.routes`. A stream that breaks off is opened again.
const STATE = 0xFFFFFFFF;
const listen = async job => {
  while (live.job === job && !live.ended) {
    try {
      const answer = await fetch(`studio/live/${job}/frames`);
      if (answer.status === 404) return finish({has_ended: true, words: ''});
      live.stream = answer.body.getReader();
      await readAll(job, live.stream);
    } catch { /* the connection was lost */ }
    if (live.job === job && !live.ended) await new Promise(after => setTimeout(after, 1000));
  }
};
const readAll = async (job, reader) => {
  let held = new Uint8Array(0);
  for (;;) {
    const {done, value} = await reader.read();
    if (done || live.job !== job) return;
    const whole = new Uint8Array(held.length + value.length);
    whole.set(held);
    whole.set(value, held.length);
    held = take(whole);
  }
};
const take = bytes => {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0;
  while (bytes.length - at >= 8 && bytes.length - at >= 8 + view.getUint32(at + 4)) {
    const number = view.getUint32(at), end = at + 8 + view.getUint32(at + 4), body = bytes.slice(at + 8, end);
    number === STATE ? state(JSON.parse(new TextDecoder().decode(body))) : arrive(number, body);
    at = end;
  }
  return bytes.slice(at);
};
const arrive = async (number, body) => {
  const picture = await createImageBitmap(new Blob([body], {type: 'image/jpeg'}));
  live.frames.push({number, picture, at: performance.now()});
  live.frames.sort((one, other) => one.number - other.number);
  const most = live.fps;  // a second: what is later than that is of no use
  if (live.frames.length > most) live.frames.splice(0, live.frames.length - most);
  if (!live.isDrawing) requestAnimationFrame(draw);
  live.isDrawing = true;
};
const state = given => {
  [live.fps, live.block] = [given.fps, given.block];
  const left = given.left === null ? '' : ` · ${fill(words().left, {seconds: given.left})}`;
  find('.headline').textContent = given.words + left;
  if (given.error) note(given.error);
  if (given.has_ended) finish(given);
};
const finish = given => {
  live.ended = true;
  find('.headline').textContent = given.words ? `${given.words} ${live.drawn.length ? words().kept : ''}` : '';
  show();
};

// Drawing. A frame is due one frame's time after the last one. A block arrives at once: when more than a block waits, drawing is a
// little faster, so that one frame is in hand when the next block comes, and what is pressed is seen as soon as can be. The browser
// is asked for its own frames only while there are some to draw.
const draw = now => {
  live.isDrawing = live.frames.length > 0;
  if (live.isDrawing) requestAnimationFrame(draw);
  const canvas = find('#live-canvas');
  if (!canvas || !live.frames.length || now < live.due) return;
  const {picture, at, number} = live.frames.shift();
  if (canvas.width !== picture.width || canvas.height !== picture.height) {
    [canvas.width, canvas.height] = [picture.width, picture.height];
    find('.live').style.setProperty('--ratio', picture.width / picture.height);
  }
  canvas.getContext('2d').drawImage(picture, 0, 0);
  canvas.dataset.frame = number;
  const pace = 1000 / live.fps * (live.frames.length > live.block ? 0.85 : 1);
  live.due = Math.max(live.due + pace, now);
  find('.veil').hidden = true;
  live.drawn.push(now);
  while (live.drawn.length > 1 && live.drawn[0] < now - 2000) live.drawn.shift();
  const seconds = (now - live.drawn[0]) / 1000, rate = seconds > 0.5 ? (live.drawn.length - 1) / seconds : 0;
  find('.numbers').textContent = rate && !live.ended
    ? fill(words().rate, {fps: rate.toFixed(0), milliseconds: Math.round(now - at)}) : '';
  if (live.drawn.length === 1) show();
};

// What is pressed: an action holds as long as its key or button is down. Of several the last one counts, or all of them where the
// model does them together; when none is left, it rests.
const steer = async () => {
  const {actions, combines} = chosen();
  const held = combines === 'true' ? live.held : live.held.slice(-1);
  for (const button of element.querySelectorAll('[data-steer]')) button.setAttribute('aria-pressed', held.includes(button.dataset.steer));
  const action = held.join('+') || (actions.split(' ').includes('stay') ? 'stay' : '');
  if (action && !live.ended) await send(`/${live.job}/say`, {action});
};
const press = name => {
  if (live.ended || live.held.includes(name)) return;
  live.held.push(name);
  steer();
};
const rest = name => {
  if (!live.held.includes(name)) return;
  live.held = live.held.filter(other => other !== name);
  steer();
};
const isOpen = () => element.offsetParent !== null;
const buttonOf = event => isOpen() && !live.ended && !event.ctrlKey && !event.altKey && !event.metaKey
  && !event.target.closest?.('input, textarea, select')
  && [...element.querySelectorAll('[data-steer]:not([hidden])')].find(button => button.dataset.keys.split(' ').includes(event.key.length > 1 ? event.key : event.key.toLowerCase()));
document.addEventListener('keydown', event => {
  const button = buttonOf(event);
  if (!button) return;
  event.preventDefault();
  if (!event.repeat) press(button.dataset.steer);
});
document.addEventListener('keyup', event => { const button = buttonOf(event); if (button) rest(button.dataset.steer); });
element.addEventListener('pointerdown', event => {
  const button = event.target.closest('[data-steer]');
  if (!button) return;
  capture(button, event);
  press(button.dataset.steer);
});
onRelease(event => {
  const button = event.target.closest('[data-steer]');
  if (button) rest(button.dataset.steer);
});
// The mouse looks around where the model takes it: as long as it is dragged, in the direction in which it moves most.
const look = (across, down) => {
  const name = Math.max(Math.abs(across), Math.abs(down)) < 3 ? '' : Math.abs(across) > Math.abs(down)
    ? `look-${across > 0 ? 'right' : 'left'}` : `look-${down > 0 ? 'down' : 'up'}`;
  if (live.held.includes(name)) return;
  const held = live.held.filter(other => !other.startsWith('look-'));
  if (!name && held.length === live.held.length) return;
  live.held = name ? [...held, name] : held;
  steer();
};
let from = null;
element.addEventListener('pointerdown', event => {
  if (event.target.id !== 'live-canvas' || !event.target.classList.contains('looks')) return;
  capture(event.target, event);
  from = [event.clientX, event.clientY];
});
element.addEventListener('pointermove', event => {
  if (!from) return;
  const [x, y] = [event.clientX, event.clientY];
  if (Math.hypot(x - from[0], y - from[1]) < 6) return;
  look(x - from[0], y - from[1]);
  from = [x, y];
});
onRelease(() => { if (from) look(0, 0); from = null; });
element.addEventListener('contextmenu', event => { if (event.target.closest('[data-steer]')) event.preventDefault(); });
element.addEventListener('click', async event => {
  const {id} = event.target;
  if (id === 'live-start') {
    note('');
    const file = find('.picture').hidden ? undefined : find('#live-picture').files[0];
    const image = file && await uploaded(file);
    if (image === null) return;
    const prompt = find('.wide').hidden ? '' : find('#live-prompt').value ||= chosen().example;
    const given = await send('', {preset: find('#live-preset').value, prompt, image});
    if (given) begin(given.job);
  } else if (id === 'live-stop') send(`/${live.job}/stop`);
  else if (id === 'live-say') send(`/${live.job}/say`, {prompt: find('#live-prompt').value});
});
element.addEventListener('keydown', event => {
  if (event.key !== 'Enter' || event.target.id !== 'live-prompt') return;
  event.preventDefault();
  find(live.ended ? '#live-start' : '#live-say').click();
});
element.addEventListener('change', event => {
  if (event.target.id === 'live-picture') {
    const label = find('.picture b');
    label.dataset.empty ??= label.textContent;
    label.textContent = event.target.files[0]?.name ?? label.dataset.empty;
  }
  if (event.target.id !== 'live-preset') return;
  offer();
  show();
});

// The page was opened, perhaps again: what this visitor is making goes on.
const open = () => {
  const job = find('.live')?.dataset.job;
  if (find('#live-preset') && !find('#live-prompt').placeholder) offer();
  if (job && job !== live.job) begin(job);
  else show();
};
watch('value', open);
open();
