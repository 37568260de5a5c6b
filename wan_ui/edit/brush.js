// The brush: what is painted over the frame that is shown, on a canvas as large as the clip's frames. What is coloured is made anew.
// Strokes are kept, so that each can be undone; a mask that was brought as a picture is one of them.
const COLOUR = '#e5484d';
const brush = {strokes: [], stroke: null, erases: false, plays: false, path: '', clip: null};

const isPainted = () => {
  const cleared = brush.strokes.findLastIndex(one => one.clears);
  return brush.strokes.slice(cleared + 1).some(one => one.picture || !one.erases);
};
const isInverted = () => find('#edit-invert').checked;
const pen = () => find('#edit-canvas').getContext('2d');
// A part of a stroke, or a whole one. With the painted part kept, paint takes the colour away.
const draw = (context, stroke, from = 0) => {
  context.globalCompositeOperation = !!stroke.erases !== isInverted() ? 'destination-out' : 'source-over';
  if (stroke.picture) return context.drawImage(stroke.picture, 0, 0, context.canvas.width, context.canvas.height);
  const points = stroke.points.slice(Math.max(0, from - 1));
  context.strokeStyle = context.fillStyle = COLOUR;
  Object.assign(context, {lineWidth: stroke.width, lineCap: 'round', lineJoin: 'round'});
  context.beginPath();
  context.moveTo(...points[0]);
  for (const point of points.slice(1)) context.lineTo(...point);
  if (points.length > 1) return context.stroke();
  context.arc(...points[0], stroke.width / 2, 0, 2 * Math.PI);
  context.fill();
};
const redraw = () => {
  const context = pen(), {width, height} = context.canvas;
  brush.path = '';
  context.globalCompositeOperation = 'source-over';
  context.clearRect(0, 0, width, height);
  context.fillStyle = COLOUR;
  if (isInverted()) context.fillRect(0, 0, width, height);
  const cleared = brush.strokes.findLastIndex(one => one.clears);
  for (const stroke of brush.strokes.slice(cleared + 1)) draw(context, stroke);
  find('#edit-undo').disabled = !brush.strokes.length;
  find('#edit-clear').disabled = !isPainted() && !isInverted();
  estimate();
};
const undo = () => { brush.strokes.pop(); redraw(); };
const unpaint = () => {
  const canvas = find('#edit-canvas');
  brush.strokes = [];
  find('#edit-invert').checked = false;
  if (edit.clip) [canvas.width, canvas.height] = [edit.clip.width, edit.clip.height];
  bring(null);
  redraw();
};

// Where on the frame a pointer is: the picture lies in the middle of the canvas's box.
const onFrame = event => {
  const canvas = find('#edit-canvas'), box = canvas.getBoundingClientRect();
  const scale = Math.min(box.width / canvas.width, box.height / canvas.height);
  return [
    (event.clientX - box.left - (box.width - canvas.width * scale) / 2) / scale,
    (event.clientY - box.top - (box.height - canvas.height * scale) / 2) / scale,
  ];
};
const penWidth = () => {
  const {width, height} = find('#edit-canvas');
  return Math.max(1, Math.min(width, height) * Number(find('#edit-brush-size').value) / 100);
};
const showRing = event => {
  const canvas = find('#edit-canvas'), ring = find('.ring'), box = canvas.getBoundingClientRect();
  ring.hidden = event.pointerType === 'touch' || event.target !== canvas;
  if (ring.hidden) return;
  const size = penWidth() * Math.min(box.width / canvas.width, box.height / canvas.height);
  ring.style.width = ring.style.height = `${size}px`;
  ring.style.left = `${event.clientX - box.left - size / 2}px`;
  ring.style.top = `${event.clientY - box.top - size / 2}px`;
};
element.addEventListener('pointerdown', event => {
  if (event.target.id !== 'edit-canvas' || event.button || brush.clip) return;
  try { event.target.setPointerCapture(event.pointerId); } catch { /* the pointer is gone already */ }
  event.preventDefault();
  event.target.focus({preventScroll: true});
  brush.stroke = {points: [onFrame(event)], width: penWidth(), erases: brush.erases};
  draw(pen(), brush.stroke);
});
element.addEventListener('pointermove', event => {
  if (wayOf() === 'paint') showRing(event);
  if (!brush.stroke) return;
  const {points} = brush.stroke, from = points.length;
  for (const one of event.getCoalescedEvents?.() ?? []) points.push(onFrame(one));
  if (points.length === from) points.push(onFrame(event));
  draw(pen(), brush.stroke, from);
});
for (const kind of ['pointerup', 'pointercancel']) element.addEventListener(kind, () => {
  if (!brush.stroke) return;
  brush.strokes.push(brush.stroke);
  brush.stroke = null;
  redraw();
});
element.addEventListener('pointerleave', () => { if (find('.ring')) find('.ring').hidden = true; });
element.addEventListener('keydown', event => {
  if (wayOf() !== 'paint' || !(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== 'z') return;
  if (event.target.matches('textarea, input:not([type=range]):not([type=checkbox]):not([type=radio])')) return;
  event.preventDefault();
  undo();
});
element.addEventListener('click', event => {
  const id = event.target.closest('.brush button')?.id;
  if (id === 'edit-brush' || id === 'edit-eraser') {
    brush.erases = id === 'edit-eraser';
    find('#edit-brush').setAttribute('aria-pressed', !brush.erases);
    find('#edit-eraser').setAttribute('aria-pressed', brush.erases);
  }
  if (id === 'edit-undo') undo();
  if (id === 'edit-clear') { find('#edit-invert').checked = false; brush.strokes.push({clears: true}); redraw(); }
  if (id === 'edit-play') play(!brush.plays);
  if (id === 'edit-mask-remove') { bring(null); redraw(); }
});
element.addEventListener('change', event => {
  if (event.target.id === 'edit-invert') redraw();
  if (event.target.id === 'edit-mask' && event.target.files.length) {
    bringMask(event.target.files[0]);
    event.target.value = '';
  }
});
// One paints on a frame that stands still, and may look at the others.
const play = plays => {
  const player = find('#edit-player');
  brush.plays = plays;
  find('#edit-play').setAttribute('aria-pressed', plays);
  if (plays || wayOf() !== 'paint') player.play().catch(() => {});
  else player.pause();
};

// A mask that is brought: a picture becomes paint, a clip is used as it is.
const bring = clip => {
  brush.clip = clip;
  find('.edit').dataset.mask = clip ? 'clip' : '';
  find('.brought').hidden = !clip;
  find('.brought span').textContent = clip ? fill(words().brought, clip) : '';
};
const bringMask = async file => {
  if (!edit.clip) return;
  const path = await uploaded(file), facts = path && await send('/mask', {mask: path, clip: edit.clip.path});
  if (facts) await showMask(facts, URL.createObjectURL(file));
};
const showMask = async (facts, address) => {
  if (!facts.is_picture) { bring(facts); return redraw(); }
  const image = new Image();
  image.src = address;
  try { await image.decode(); } catch { return; }
  bring(null);
  brush.strokes.push({picture: coloured(image)});
  redraw();
};
// A picture's light pixels in the brush's colour, the others transparent.
const coloured = image => {
  const canvas = Object.assign(document.createElement('canvas'), {width: edit.clip.width, height: edit.clip.height});
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height), {data} = pixels;
  for (let at = 0; at < data.length; at += 4) {
    const light = 0.299 * data[at] + 0.587 * data[at + 1] + 0.114 * data[at + 2];
    [data[at], data[at + 1], data[at + 2], data[at + 3]] = [229, 72, 77, light > 127 && data[at + 3] > 127 ? 255 : 0];
  }
  context.putImageData(pixels, 0, 0);
  return canvas;
};

// The mask as the server wants it: its path there, '' if nothing is painted, null if it could not be sent.
const maskPath = async () => {
  if (brush.clip) return brush.clip.path;
  if (!isPainted()) return '';
  if (brush.path) return brush.path;
  const shown = find('#edit-canvas');
  const canvas = Object.assign(document.createElement('canvas'), {width: shown.width, height: shown.height});
  const context = canvas.getContext('2d');
  context.drawImage(shown, 0, 0);
  context.globalCompositeOperation = 'source-in';
  context.fillStyle = '#fff';
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.globalCompositeOperation = 'destination-over';
  context.fillStyle = '#000';
  context.fillRect(0, 0, canvas.width, canvas.height);
  const blob = await new Promise(done => canvas.toBlob(done, 'image/png'));
  brush.path = await uploaded(new File([blob], 'mask.png', {type: 'image/png'})) ?? '';
  return brush.path || null;
};

