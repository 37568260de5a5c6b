// The brush: what is painted over the frame that is shown, on a canvas as large as the clip's frames. What is coloured is made
// anew. Strokes are kept, so that each can be undone; a mask that was brought as a picture is one of them.
const brush = (() => {
  const COLOUR = '#e5484d';
  // `clip`: a mask that is a clip; `path`: that of the mask on the server, while it is the one that is painted.
  const state = {strokes: [], stroke: null, erases: false, plays: false, path: '', clip: null};

  const isPainted = () => {
    const cleared = state.strokes.findLastIndex(one => one.clears);
    return state.strokes.slice(cleared + 1).some(one => one.picture || !one.erases);
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
    state.path = '';
    context.globalCompositeOperation = 'source-over';
    context.clearRect(0, 0, width, height);
    context.fillStyle = COLOUR;
    if (isInverted()) context.fillRect(0, 0, width, height);
    const cleared = state.strokes.findLastIndex(one => one.clears);
    for (const stroke of state.strokes.slice(cleared + 1)) draw(context, stroke);
    find('#edit-undo').disabled = !state.strokes.length;
    find('#edit-clear').disabled = !isPainted() && !isInverted();
    edit.estimate();
  };
  const undo = () => { state.strokes.pop(); redraw(); };
  const clear = () => {
    const canvas = find('#edit-canvas');
    state.strokes = [];
    find('#edit-invert').checked = false;
    if (clip.facts) [canvas.width, canvas.height] = [clip.facts.width, clip.facts.height];
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
    if (event.target.id !== 'edit-canvas' || event.button || state.clip) return;
    capture(event.target, event);
    event.preventDefault();
    event.target.focus({preventScroll: true});
    state.stroke = {points: [onFrame(event)], width: penWidth(), erases: state.erases};
    draw(pen(), state.stroke);
  });
  element.addEventListener('pointermove', event => {
    if (ways.current() === 'paint') showRing(event);
    if (!state.stroke) return;
    const {points} = state.stroke, from = points.length;
    for (const one of event.getCoalescedEvents?.() ?? []) points.push(onFrame(one));
    if (points.length === from) points.push(onFrame(event));
    draw(pen(), state.stroke, from);
  });
  onRelease(() => {
    if (!state.stroke) return;
    state.strokes.push(state.stroke);
    state.stroke = null;
    redraw();
  });
  element.addEventListener('pointerleave', () => { if (find('.ring')) find('.ring').hidden = true; });
  element.addEventListener('keydown', event => {
    if (ways.current() !== 'paint' || !(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== 'z') return;
    if (event.target.matches('textarea, input:not([type=range]):not([type=checkbox]):not([type=radio])')) return;
    event.preventDefault();
    undo();
  });
  element.addEventListener('click', event => {
    const id = event.target.closest('.brush button')?.id;
    if (id === 'edit-brush' || id === 'edit-eraser') {
      state.erases = id === 'edit-eraser';
      find('#edit-brush').setAttribute('aria-pressed', !state.erases);
      find('#edit-eraser').setAttribute('aria-pressed', state.erases);
    }
    if (id === 'edit-undo') undo();
    if (id === 'edit-clear') { find('#edit-invert').checked = false; state.strokes.push({clears: true}); redraw(); }
    if (id === 'edit-play') play(!state.plays);
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
  const play = (plays = state.plays) => {
    const player = find('#edit-player');
    state.plays = plays;
    find('#edit-play').setAttribute('aria-pressed', plays);
    if (plays || ways.current() !== 'paint') player.play().catch(() => {});
    else player.pause();
  };

  // A mask that is brought: a picture becomes paint, a clip is used as it is.
  const bring = mask => {
    state.clip = mask;
    find('.edit').dataset.mask = mask ? 'clip' : '';
    find('.brought').hidden = !mask;
    find('.brought span').textContent = mask ? fill(words().brought, mask) : '';
  };
  const bringMask = async file => {
    if (!clip.facts) return;
    const mask = await uploaded(file), facts = mask && await send('/mask', {mask, clip: clip.facts.path});
    if (facts) await show(facts, URL.createObjectURL(file));
  };
  const show = async (facts, address) => {
    if (!facts.is_picture) { bring(facts); return redraw(); }
    const image = new Image();
    image.src = address;
    try { await image.decode(); } catch { return; }
    bring(null);
    state.strokes.push({picture: coloured(image)});
    redraw();
  };
  // A picture's light pixels in the brush's colour, the others transparent.
  const coloured = image => {
    const canvas = Object.assign(document.createElement('canvas'), {width: clip.facts.width, height: clip.facts.height});
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
  const path = async () => {
    if (state.clip) return state.clip.path;
    if (!isPainted()) return '';
    if (state.path) return state.path;
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
    state.path = await uploaded(new File([blob], 'mask.png', {type: 'image/png'})) ?? '';
    return state.path || null;
  };

  return {clear, path, play, show};
})();

