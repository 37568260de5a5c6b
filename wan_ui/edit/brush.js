// The brush paints on the shown frame, on a canvas as large as the clip's frames. Painted areas are regenerated. Each stroke can be
// undone. An uploaded mask image counts as a stroke.
import { capture, create, find, on, onDrag, onFiles, play } from '../components/dom.js';
import { fill } from '../components/text.js';
import { isPainted, paintLight, penWidth, pointOnFrame, scaleOf, seenStrokes } from './strokes.js';

const COLOR = [229, 72, 77];
const COLOR_TEXT = `rgb(${COLOR.join()})`;

/** @typedef {import('./strokes.js').Stroke} Stroke */
/** @typedef {{path: string, name: string, is_picture?: boolean}} Mask */

/** @param {ViewClient} client
 * @param {{clip: () => {path: string, width: number, height: number} | null, isPainting: () => boolean, changed: () => void}} view */
export const createBrush = (client, view) => {
  const { element, words, send, upload, one, input, button, canvas } = client;
  const state = {
    strokes: /** @type {Stroke[]} */ ([]),
    erases: false,
    plays: false,
    /** The path of the painted mask on the server, "" after a change. */
    path: '',
    /** A clip that was uploaded as the mask. @type {Mask | null} */
    clip: null,
  };

  const isInverted = () => input('#edit-invert').checked;

  const getPen = (/** @type {HTMLCanvasElement} */ target) => {
    const pen = target.getContext('2d');
    if (!pen) throw new Error('the browser draws no pictures');
    return pen;
  };

  /** Draws a stroke, or its part after the first `from` points. In an inverted mask, painting removes the
   * color and erasing adds it.
   * @param {CanvasRenderingContext2D} pen @param {Stroke} stroke @param {number} [from] */
  const draw = (pen, stroke, from = 0) => {
    const erases = 'erases' in stroke && stroke.erases;
    pen.globalCompositeOperation = erases !== isInverted() ? 'destination-out' : 'source-over';
    if ('picture' in stroke) return pen.drawImage(stroke.picture, 0, 0, pen.canvas.width, pen.canvas.height);
    if (!('points' in stroke)) return;
    const [first, ...others] = stroke.points.slice(Math.max(0, from - 1));
    pen.strokeStyle = pen.fillStyle = COLOR_TEXT;
    Object.assign(pen, { lineWidth: stroke.width, lineCap: 'round', lineJoin: 'round' });
    pen.beginPath();
    pen.moveTo(...first);
    for (const point of others) pen.lineTo(...point);
    if (others.length) return pen.stroke();
    pen.arc(...first, stroke.width / 2, 0, 2 * Math.PI);
    pen.fill();
  };

  const redraw = () => {
    const pen = getPen(canvas('#edit-canvas'));
    const { width, height } = pen.canvas;
    state.path = '';
    pen.globalCompositeOperation = 'source-over';
    pen.clearRect(0, 0, width, height);
    pen.fillStyle = COLOR_TEXT;
    if (isInverted()) pen.fillRect(0, 0, width, height);
    for (const stroke of seenStrokes(state.strokes)) draw(pen, stroke);
    button('#edit-undo').disabled = !state.strokes.length;
    button('#edit-clear').disabled = !isPainted(state.strokes) && !isInverted();
    view.changed();
  };

  const undo = () => {
    state.strokes.pop();
    redraw();
  };

  /** Removes all strokes and resizes the canvas to the clip. */
  const clear = () => {
    const clip = view.clip();
    state.strokes = [];
    input('#edit-invert').checked = false;
    if (clip) Object.assign(canvas('#edit-canvas'), { width: clip.width, height: clip.height });
    useClip(null);
    redraw();
  };

  const pointOf = (/** @type {PointerEvent} */ event) => {
    const shown = canvas('#edit-canvas');
    return pointOnFrame({ x: event.clientX, y: event.clientY }, shown.getBoundingClientRect(), shown);
  };
  const width = () => penWidth(canvas('#edit-canvas'), Number(input('#edit-brush-size').value));

  onDrag(element, '#edit-canvas', (target, event) => {
    if (event.button || state.clip) return;
    capture(target, event);
    event.preventDefault();
    target.focus({ preventScroll: true });
    const stroke = { points: [pointOf(event)], width: width(), erases: state.erases };
    draw(getPen(canvas('#edit-canvas')), stroke);
    return {
      move: moved => {
        const from = stroke.points.length;
        const parts = moved.getCoalescedEvents?.() ?? [];
        for (const part of parts.length ? parts : [moved]) stroke.points.push(pointOf(part));
        draw(getPen(canvas('#edit-canvas')), stroke, from);
      },
      end: () => {
        state.strokes.push(stroke);
        redraw();
      },
    };
  });
  // A ring around the pointer shows the size of the brush.
  on(element, 'pointermove', '*', (target, { pointerType, clientX, clientY }) => {
    if (!view.isPainting()) return;
    const shown = canvas('#edit-canvas');
    const ring = one('.ring');
    ring.hidden = pointerType === 'touch' || target !== shown;
    if (ring.hidden) return;
    const box = shown.getBoundingClientRect();
    const size = width() * scaleOf(box, shown);
    ring.style.width = ring.style.height = `${size}px`;
    ring.style.left = `${clientX - box.left - size / 2}px`;
    ring.style.top = `${clientY - box.top - size / 2}px`;
  });
  element.addEventListener('pointerleave', () => find('.ring', element)?.toggleAttribute('hidden', true));
  on(element, 'keydown', '*', (target, event) => {
    if (!view.isPainting() || !(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== 'z') return;
    if (target.matches('textarea, input:not([type=range]):not([type=checkbox]):not([type=radio])')) return;
    event.preventDefault();
    undo();
  });
  on(element, 'click', '#edit-brush, #edit-eraser', ({ id }) => {
    state.erases = id === 'edit-eraser';
    one('#edit-brush').setAttribute('aria-pressed', String(!state.erases));
    one('#edit-eraser').setAttribute('aria-pressed', String(state.erases));
  });
  on(element, 'click', '#edit-undo', undo);
  on(element, 'click', '#edit-clear', () => {
    input('#edit-invert').checked = false;
    state.strokes.push({ clears: true });
    redraw();
  });
  on(element, 'click', '#edit-play', () => setPlaying(!state.plays));
  on(element, 'click', '#edit-mask-remove', () => {
    useClip(null);
    redraw();
  });
  on(element, 'change', '#edit-invert', redraw);
  onFiles(element, '#edit-mask', async ([file]) => {
    const clip = view.clip();
    const mask = clip && (await upload(file));
    const facts = mask && (await send('/mask', { mask, clip: clip.path }));
    if (facts) show(facts, URL.createObjectURL(file));
  });

  /** Plays the clip. While the visitor paints, the clip stays paused unless Play is pressed. @param {boolean} [plays] */
  const setPlaying = (plays = state.plays) => {
    const player = client.video('#edit-player');
    state.plays = plays;
    one('#edit-play').setAttribute('aria-pressed', String(plays));
    if (plays || !view.isPainting()) play(player);
    else player.pause();
  };

  const useClip = (/** @type {Mask | null} */ mask) => {
    state.clip = mask;
    one('.edit').dataset.mask = mask ? 'clip' : '';
    one('.brought').hidden = !mask;
    one('.brought span').textContent = mask ? fill(words().mask_name, { name: mask.name }) : '';
  };
  /** Shows an uploaded mask: an image becomes a stroke, a clip is used unchanged. @param {Mask} mask @param {string} address */
  const show = async (mask, address) => {
    if (mask.is_picture) {
      const image = create('img', { src: address });
      try {
        await image.decode();
      } catch {
        return;
      }
      const { width, height } = view.clip() ?? image;
      const pen = getPen(create('canvas', { width, height }));
      pen.drawImage(image, 0, 0, width, height);
      const pixels = pen.getImageData(0, 0, width, height);
      paintLight(pixels.data, COLOR);
      pen.putImageData(pixels, 0, 0);
      state.strokes.push({ picture: pen.canvas });
    }
    useClip(mask.is_picture ? null : mask);
    redraw();
  };

  /** Uploads the mask. Returns its path on the server: "" without paint, null after a failure. @returns {Promise<string | null>} */
  const uploadMask = async () => {
    if (state.clip) return state.clip.path;
    if (!isPainted(state.strokes)) return '';
    if (state.path) return state.path;
    const shown = canvas('#edit-canvas');
    const { width, height } = shown;
    const pen = getPen(create('canvas', { width, height }));
    pen.drawImage(shown, 0, 0);
    /** @param {GlobalCompositeOperation} operation @param {string} color */
    const fillAll = (operation, color) => {
      pen.globalCompositeOperation = operation;
      pen.fillStyle = color;
      pen.fillRect(0, 0, width, height);
    };
    fillAll('source-in', '#fff');
    fillAll('destination-over', '#000');
    /** @type {Blob | null} */
    const blob = await new Promise(done => pen.canvas.toBlob(done, 'image/png'));
    state.path = (blob && (await upload(new File([blob], 'mask.png', { type: 'image/png' })))) ?? '';
    return state.path || null;
  };

  return { clear, setPlaying, show, uploadMask };
};
