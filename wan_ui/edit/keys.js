// Pictures beside the clip: key frames, each at a frame of the video, reference pictures, and the figure that moves. Each is sent when it is added,
// and the server says whether it can be used.
const pictures = (() => {
  const state = {keys: [], references: [], figure: null, chosen: null};

  // A picture's path on the server and its address here; null if it cannot be used.
  const takePicture = async file => {
    if (!/^image\//.test(file.type) && !/\.(png|jpe?g|webp)$/i.test(file.name)) { note(words().pictures_only); return null; }
    const path = await uploaded(file), facts = path && await send('/picture', {picture: path});
    return facts && {path: facts.path, name: facts.name, address: URL.createObjectURL(file)};
  };
  const mostReferences = () => edit.limits()?.max_references ?? 0;
  const addReferences = async files => {
    for (const file of files) {
      if (state.references.length >= mostReferences()) return note(fill(words().references_full, {count: mostReferences()}));
      const one = await takePicture(file);
      if (one) state.references.push(one);
      show();
    }
  };
  const setFigure = async file => {
    const one = await takePicture(file);
    if (one) state.figure = one;
    show();
  };
  // At this frame on, or at the free one that is nearest to it; spread over the video if there is no place asked for.
  const addKeys = async (files, frame = null) => {
    for (const file of files) {
      const one = await takePicture(file);
      if (one) placeKey(one, frame ?? nextFrame());
    }
  };
  const lastFrame = () => Number(find('#edit-length').value) - 1;
  const nextFrame = () => {
    const taken = state.keys.map(one => one.frame);
    return [0, lastFrame()].find(frame => !taken.includes(frame)) ?? widest(taken.sort((a, b) => a - b));
  };
  // The middle of the widest gap.
  const widest = taken => {
    let [at, width] = [0, 0];
    for (let place = 1; place < taken.length; place++) {
      const gap = taken[place] - taken[place - 1];
      if (gap > width) [at, width] = [taken[place - 1] + (gap >> 1), gap];
    }
    return at;
  };
  const freeFrame = (wanted, key) => {
    const taken = new Set(state.keys.filter(one => one !== key).map(one => one.frame)), last = lastFrame();
    const near = Math.max(0, Math.min(last, Math.round(wanted)));
    for (let off = 0; off <= last; off++)
      for (const frame of [near - off, near + off]) if (frame >= 0 && frame <= last && !taken.has(frame)) return frame;
    return null;
  };
  const placeKey = (key, wanted) => {
    const frame = freeFrame(wanted, key);
    if (frame === null) return note(words().key_full);
    key.frame = frame;
    if (!state.keys.includes(key)) state.keys.push(key);
    state.chosen = key;
    note(frame === Math.max(0, Math.min(lastFrame(), Math.round(wanted))) ? '' : fill(words().key_taken, {frame}));
    show();
  };
  // A shorter video has the same pictures, each within it.
  const keepWithin = () => {
    for (const key of [...state.keys].sort((a, b) => a.frame - b.frame)) {
      const frame = freeFrame(key.frame, key);
      if (frame === null) state.keys.splice(state.keys.indexOf(key), 1);
      else key.frame = frame;
    }
    show();
  };

  const thumb = (one, kind) => {
    const button = document.createElement('button'), image = document.createElement('img');
    image.src = one.address;
    image.alt = one.name;
    image.draggable = false;
    button.type = 'button';
    button.className = kind;
    button.append(image);
    return button;
  };
  const show = () => {
    const track = find('.track');
    if (!track) return;
    if (!state.keys.includes(state.chosen)) state.chosen = state.keys[0] ?? null;
    for (const old of track.querySelectorAll('.key')) if (!state.keys.includes(old.studioKey)) old.remove();
    for (const key of state.keys) {
      const button = key.button ??= Object.assign(thumb(key, 'key'), {studioKey: key});
      if (button.parentNode !== track) track.append(button);
      button.style.setProperty('--at', key.frame / Math.max(1, lastFrame()));
      button.setAttribute('aria-pressed', key === state.chosen);
      button.setAttribute('aria-label', `${key.name}: ${keyWords(key)}`);
    }
    find('.track .empty').hidden = state.keys.length > 0;
    find('.keys output').textContent = state.chosen ? keyWords(state.chosen) : '';
    find('#edit-key-remove').hidden = !state.chosen;
    showTiles('.references', state.references, mostReferences());
    showTiles('.figure', state.figure ? [state.figure] : [], 1);
    ways.showMake();
    edit.estimate();
  };
  // The pictures of one row, each of which is a button that removes it.
  const showTiles = (row, pictures, most) => {
    const add = find(`${row} .tile.add`);
    for (const old of element.querySelectorAll(`${row} .tile:not(.add)`)) old.remove();
    pictures.forEach((one, place) => {
      const button = thumb(one, 'tile');
      button.title = `${words().remove}: ${one.name}`;
      button.setAttribute('aria-label', button.title);
      button.dataset.place = place;
      add.before(button);
    });
    add.hidden = pictures.length >= most;
  };
  const keyWords = ({frame}) => fill(words().key, {frame, last: lastFrame(), at: (frame / edit.limits().fps).toFixed(2)});
  const removeKey = () => {
    state.keys.splice(state.keys.indexOf(state.chosen), 1);
    show();
  };

  // A key frame is dragged along the track, or moved by keys.
  let dragged = null;
  const frameAt = clientX => {
    const track = find('.track'), box = track.getBoundingClientRect();
    const half = parseFloat(getComputedStyle(track).getPropertyValue('--key')) / 2;
    return (clientX - box.left - half) / (box.width - 2 * half) * lastFrame();
  };
  element.addEventListener('pointerdown', event => {
    const button = event.target.closest?.('.key');
    if (!button) return;
    capture(find('.track'), event);
    dragged = {key: button.studioKey, off: frameAt(event.clientX) - button.studioKey.frame};
    state.chosen = dragged.key;
    show();
    find('.key[aria-pressed="true"]').focus({preventScroll: true});
  });
  element.addEventListener('pointermove', event => {
    if (!dragged) return;
    const frame = freeFrame(frameAt(event.clientX) - dragged.off, dragged.key);
    if (frame === null || frame === dragged.key.frame) return;
    dragged.key.frame = frame;
    show();
  });
  onRelease(() => { dragged = null; });
  element.addEventListener('keydown', event => {
    const key = event.target.closest?.('.key')?.studioKey;
    if (!key) return;
    const step = {ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10}[event.key];
    const wanted = {Home: 0, End: lastFrame()}[event.key] ?? (step && key.frame + step);
    if (wanted === undefined && !['Delete', 'Backspace'].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    state.chosen = key;
    if (wanted === undefined) return removeKey();
    // past a frame that is taken, in the direction of the key
    let frame = wanted;
    while (step && state.keys.some(one => one !== key && one.frame === frame)) frame += Math.sign(step);
    if (frame >= 0 && frame <= lastFrame()) key.frame = frame;
    show();
  });
  element.addEventListener('click', event => {
    const tile = event.target.closest?.('.tile:not(.add)');
    if (tile?.closest('.figure')) { state.figure = null; show(); }
    else if (tile) { state.references.splice(Number(tile.dataset.place), 1); show(); }
    if (event.target.id === 'edit-key-remove') removeKey();
  });
  element.addEventListener('change', event => {
    const {id, files} = event.target;
    if (!files?.length) return;
    const chosen = [...files];
    if (id === 'edit-keys' || id === 'edit-keys-first') { addKeys(chosen); event.target.value = ''; }
    if (id === 'edit-references') { addReferences(chosen); event.target.value = ''; }
    if (id === 'edit-figure') { setFigure(chosen[0]); event.target.value = ''; }
  });
  // Files that are dropped here are for here, and not for the page.
  element.addEventListener('dragover', event => {
    const place = event.target.closest?.('.takes-files');
    if (!place || ![...(event.dataTransfer?.types ?? [])].includes('Files')) return;
    event.preventDefault();
    place.dataset.over = true;
  });
  element.addEventListener('dragleave', event => { delete event.target.closest?.('.takes-files')?.dataset.over; });
  element.addEventListener('drop', event => {
    const place = event.target.closest?.('.takes-files');
    if (!place || !event.dataTransfer?.files.length) return;
    event.preventDefault();
    delete place.dataset.over;
    const files = [...event.dataTransfer.files];
    if (place.closest('.figure')) setFigure(files[0]);
    else if (place.matches('.tiles')) addReferences(files);
    else addKeys(files, frameAt(event.clientX));
  });

  // An earlier video's pictures.
  const restore = (keys, references, figure) => Object.assign(state, {keys, references, figure});

  const keys = () => state.keys, references = () => state.references, figure = () => state.figure;
  return {addKeys, addReferences, figure, keepWithin, keys, lastFrame, references, restore, setFigure, show};
})();

