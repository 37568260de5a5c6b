// The live view. Frames are drawn at the speed of the video. Keys and prompts are sent to the server immediately.
import { capture, find, findAll, on, onDrag, onRelease } from '../components/dom.js';
import { createViewClient, parsedData } from '../components/http.js';
import { fill } from '../components/text.js';
import { createSettings } from '../form/settings.js';
import { concatenate, lookAction, readPackets } from './packets.js';

const AGAIN_MILLISECONDS = 1000; // until a broken stream is opened again

export const startLive = (/** @type {GradioComponent} */ { element, watch }) => {
  const client = createViewClient(element, 'live');
  const { words, note, send, upload, one, input, select, canvas } = client;
  const settings = createSettings(client, own => {
    select('#live-preset').value = own.preset;
    showPreset();
    settings.fill(own.settings);
  });
  const live = {
    job: '',
    /** Frames to draw, in order. `at` is the arrival in milliseconds. @type {{number: number, picture: ImageBitmap, at: number}[]} */
    frames: [],
    fps: 16,
    block: 4,
    due: 0,
    /** The times at which the frames of the last two seconds were drawn. @type {number[]} */
    drawn: [],
    hasEnded: true,
    /** The actions whose keys or buttons are pressed, oldest first. @type {string[]} */
    held: [],
    isDrawing: false,
  };

  const steers = () => /** @type {HTMLButtonElement[]} */ (findAll('[data-steer]', element));
  const chosen = () => select('#live-preset').selectedOptions[0]?.dataset ?? {};
  const actionsOf = () => (chosen().actions ?? '').split(' ').filter(Boolean);

  const showControls = () => {
    if (!find('#live-preset option', element)) return;
    const actions = actionsOf();
    const isOn = !live.hasEnded;
    const { tasks = '', reads } = chosen();
    const looks = actions.some(name => name.startsWith('look-'));
    for (const one of steers()) one.hidden = !actions.includes(one.dataset.steer ?? '');
    one('#live-start').hidden = isOn;
    one('#live-stop').hidden = !isOn;
    one('#live-say').hidden = !isOn || reads === 'false';
    one('.picture').hidden = isOn || !tasks.includes('i2v');
    one('.picture span').textContent = tasks.includes('t2v') ? words().image_optional : words().image;
    one('.wide').hidden = reads === 'false';
    if (live.hasEnded && !live.drawn.length) one('.veil').textContent = looks ? words().drag : words().start_hint;
    one('#live-canvas').classList.toggle('looks', isOn && looks);
    select('#live-preset').disabled = isOn;
    one('.live').dataset.on = String(isOn);
    one('.dot').hidden = !isOn || !live.drawn.length;
  };

  /** Shows the selected model's settings and example prompt. */
  const showPreset = () => {
    settings.show(parsedData(select('#live-preset').selectedOptions[0], 'controls'), 'live');
    // The first prompt is the model's example, if the example is in the page's language. Otherwise the empty field shows a
    // translation, and the example is sent if the field stays empty.
    const { example = '', caption = '' } = chosen();
    const field = input('#live-prompt');
    if (!field.dataset.typed) field.value = caption === example ? example : ''; // never replace typed text
    field.placeholder = caption;
    showControls();
  };

  on(element, 'input', '#live-prompt', (/** @type {HTMLInputElement} */ { dataset, value }) => {
    dataset.typed = value.trim();
  });

  const openVideo = (/** @type {string} */ job) => {
    Object.assign(live, { job, frames: [], due: 0, drawn: [], hasEnded: false, held: [] });
    one('.live').dataset.job = job;
    one('.veil').hidden = false;
    one('.headline').textContent = one('.numbers').textContent = '';
    showControls();
    readStream(job);
  };

  /** Reads the job's stream until the job ends. @param {string} job */
  const readStream = async job => {
    while (live.job === job && !live.hasEnded) {
      try {
        const answer = await fetch(`studio/live/${job}/frames`);
        if (answer.status === 404) return showEnd('');
        if (answer.body) await readAll(job, answer.body.getReader());
      } catch {
        // The connection was lost.
      }
      if (live.job === job && !live.hasEnded) await new Promise(after => setTimeout(after, AGAIN_MILLISECONDS));
    }
  };

  /** @param {string} job @param {ReadableStreamDefaultReader<Uint8Array>} reader */
  const readAll = async (job, reader) => {
    let held = new Uint8Array(0);
    for (;;) {
      const { done, value } = await reader.read();
      if (done || live.job !== job) return;
      const { packets, rest } = readPackets(concatenate(held, value));
      for (const { number, isState, body } of packets) {
        if (isState) showState(JSON.parse(new TextDecoder().decode(body)));
        else addFrame(number, body);
      }
      held = rest;
    }
  };

  /** @param {number} number @param {Uint8Array<ArrayBuffer>} body */
  const addFrame = async (number, body) => {
    const picture = await createImageBitmap(new Blob([body], { type: 'image/jpeg' }));
    live.frames.push({ number, picture, at: performance.now() });
    live.frames.sort((one, other) => one.number - other.number);
    live.frames = live.frames.slice(-live.fps); // one second; older frames are dropped
    if (!live.isDrawing) requestAnimationFrame(drawNextFrame);
    live.isDrawing = true;
  };

  /** @param {{words: string, error?: string, has_ended: boolean, fps: number, block: number, left: number | null}} state */
  const showState = state => {
    live.fps = state.fps;
    live.block = state.block;
    const left = state.left === null ? '' : ` · ${fill(words().left, { seconds: state.left })}`;
    one('.headline').textContent = state.words + left;
    if (state.error) note(state.error);
    if (state.has_ended) showEnd(state.words);
  };

  const showEnd = (/** @type {string} */ text) => {
    live.hasEnded = true;
    one('.headline').textContent = text ? `${text} ${live.drawn.length ? words().saved : ''}` : '';
    showControls();
  };

  // A frame is due one frame duration after the previous frame. A block of frames arrives at once. While more frames than one
  // block wait, each frame is shown for 0.85 of its duration. Then about one frame remains when the next block arrives, and the
  // effect of a key is visible soon. The page requests animation frames only while frames wait.
  const drawNextFrame = (/** @type {number} */ now) => {
    live.isDrawing = live.frames.length > 0;
    if (live.isDrawing) requestAnimationFrame(drawNextFrame);
    if (!find('#live-canvas', element) || now < live.due) return;
    const frame = live.frames.shift();
    if (!frame) return;
    const { picture, at, number } = frame;
    const shown = canvas('#live-canvas');
    const { width, height } = picture;
    if (shown.width !== width || shown.height !== height) {
      Object.assign(shown, { width, height });
      one('.live').style.setProperty('--ratio', String(width / height));
    }
    shown.getContext('2d')?.drawImage(picture, 0, 0);
    shown.dataset.frame = String(number);
    const pace = (1000 / live.fps) * (live.frames.length > live.block ? 0.85 : 1);
    live.due = Math.max(live.due + pace, now);
    one('.veil').hidden = true;
    live.drawn.push(now);
    while (live.drawn.length > 1 && live.drawn[0] < now - 2000) live.drawn.shift();
    const seconds = (now - live.drawn[0]) / 1000;
    const fps = seconds > 0.5 ? (live.drawn.length - 1) / seconds : 0;
    const numbers = { fps: fps.toFixed(0), milliseconds: Math.round(now - at) };
    one('.numbers').textContent = fps && !live.hasEnded ? fill(words().rate, numbers) : '';
    if (live.drawn.length === 1) showControls();
  };

  // An action lasts while its key or button is pressed. If several are pressed, the last action is sent, or all actions if the model
  // combines them. Without an action, the model receives `stay`.
  const steer = async () => {
    const held = chosen().combines === 'true' ? live.held : live.held.slice(-1);
    for (const one of steers()) one.setAttribute('aria-pressed', String(held.includes(one.dataset.steer ?? '')));
    const action = held.join('+') || (actionsOf().includes('stay') ? 'stay' : '');
    if (action && !live.hasEnded) await send(`/${live.job}/say`, { action });
  };

  const press = (/** @type {string} */ action) => {
    if (live.hasEnded || live.held.includes(action)) return;
    live.held.push(action);
    steer();
  };

  const release = (/** @type {string} */ action) => {
    if (!live.held.includes(action)) return;
    live.held = live.held.filter(other => other !== action);
    steer();
  };

  /** Returns the action of a key, if the view is shown and no text field has the focus. @param {Element} target @param {KeyboardEvent} event */
  const actionOfKey = (target, event) => {
    const isFree = element.offsetParent !== null && !live.hasEnded && !event.ctrlKey && !event.altKey && !event.metaKey;
    if (!isFree || target.closest('input, textarea, select')) return undefined;
    const key = event.key.length > 1 ? event.key : event.key.toLowerCase();
    return steers().find(one => !one.hidden && one.dataset.keys?.split(' ').includes(key))?.dataset.steer;
  };

  on(document, 'keydown', '*', (target, event) => {
    const action = actionOfKey(target, event);
    if (!action) return;
    event.preventDefault();
    if (!event.repeat) press(action);
  });
  on(document, 'keyup', '*', (target, event) => release(actionOfKey(target, event) ?? ''));
  on(element, 'pointerdown', '[data-steer]', (pressed, event) => {
    capture(pressed, event);
    press(pressed.dataset.steer ?? '');
  });
  onRelease(element, target => release(target.dataset.steer ?? ''));
  on(element, 'contextmenu', '[data-steer]', (_, event) => event.preventDefault());

  // Dragging the mouse turns the camera, for models with such actions.
  /** @param {number} across @param {number} down */
  const lookAround = (across, down) => {
    const action = lookAction(across, down);
    if (live.held.includes(action)) return;
    const others = live.held.filter(other => !other.startsWith('look-'));
    if (!action && others.length === live.held.length) return;
    live.held = action ? [...others, action] : others;
    steer();
  };
  onDrag(element, '#live-canvas.looks', (target, event) => {
    capture(target, event);
    let last = event;
    return {
      move: next => {
        const [across, down] = [next.clientX - last.clientX, next.clientY - last.clientY];
        if (Math.hypot(across, down) < 6) return;
        lookAround(across, down);
        last = next;
      },
      end: () => lookAround(0, 0),
    };
  });

  on(element, 'click', '#live-start', async () => {
    note('');
    const file = one('.picture').hidden ? undefined : input('#live-picture').files?.[0];
    const image = file && (await upload(file));
    if (image === null) return;
    const field = input('#live-prompt');
    if (!one('.wide').hidden) field.value ||= chosen().example ?? '';
    const prompt = one('.wide').hidden ? '' : field.value;
    const given = await send('', { preset: select('#live-preset').value, prompt, image, settings: settings.read() });
    if (given) openVideo(given.job);
  });
  on(element, 'click', '#live-stop', () => send(`/${live.job}/stop`));
  on(element, 'click', '#live-say', () => send(`/${live.job}/say`, { prompt: input('#live-prompt').value }));
  on(element, 'keydown', '#live-prompt', (_, event) => {
    if (event.key !== 'Enter') return;
    event.preventDefault();
    one(live.hasEnded ? '#live-start' : '#live-say').click();
  });
  on(element, 'change', '#live-picture', (/** @type {HTMLInputElement} */ { files }) => {
    const label = one('.picture b');
    label.dataset.empty ??= label.textContent ?? '';
    label.textContent = files?.[0]?.name ?? label.dataset.empty;
  });
  on(element, 'change', '#live-preset', showPreset);

  // A newly opened or reloaded page continues this visitor's running video.
  const open = () => {
    const { job, fill: given = 'null' } = find('.live', element)?.dataset ?? {};
    if (find('#live-preset', element) && !input('#live-prompt').placeholder) {
      const loaded = JSON.parse(given);
      if (loaded) select('#live-preset').value = loaded.preset;
      showPreset();
      if (loaded) {
        Object.assign(input('#live-prompt'), { value: loaded.prompt }).dataset.typed = loaded.prompt;
        settings.fill(loaded.settings);
      }
    }
    if (job && job !== live.job) openVideo(job);
    else showControls();
  };
  watch('value', open);
  open();
};
