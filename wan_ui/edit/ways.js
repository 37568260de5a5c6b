// The ways: what is done with the clip, what each way asks beside it, and what of that the server is sent.
const ways = (() => {
  const SIDES = ['left', 'top', 'right', 'bottom'];
  let moved = null;  // where the part began when the clip was to go on

  const current = () => find('[name="edit-way"]:checked')?.value ?? 'anew';
  const choose = way => {
    const picker = find('#edit-preset'), ways = option => JSON.parse(option.dataset.limits).ways;
    if (!picker) return;
    if (!ways(picker.selectedOptions[0]).includes(way)) {
      const able = [...picker.options].find(option => ways(option).includes(way));
      if (!able) return;
      picker.value = able.value;
      return edit.choosePreset(way);
    }
    find(`[name="edit-way"][value="${way}"]`).checked = true;
    find('.choose .hint').textContent = find('[name="edit-way"]:checked').dataset.hint;
    find('.edit').dataset.way = way;
    find('#edit-prompt').placeholder = {sound: words().placeholder_sound, animate: words().placeholder_animate}[way] ?? words().placeholder;
    for (const one of element.querySelectorAll('[data-of]')) one.hidden = !one.dataset.of.split(' ').includes(way);
    for (const one of element.querySelectorAll('[data-takes]')) one.hidden = !edit.limits().inputs.includes(one.dataset.takes);
    showScale(way);
    showEnds();
    find('.timeline').hidden ||= !clip.facts;
    find('#edit-canvas').hidden = way !== 'paint' || !clip.facts;
    if (way !== 'paint') find('.ring').hidden = true;
    note('');
    clip.drawFilm();
    showFrame();
    pictures.show();
    const before = clip.start;
    if (clip.facts) clip.part(startOf(way), clip.frames || edit.usualLength());
    if (way !== 'extend') moved = null;
    else if (clip.start !== before) moved = clip.start;
    brush.play(false);
  };
  // A clip goes on after its very end unless another part is chosen; that part is for this way alone.
  const startOf = way => {
    if (way !== 'extend') return moved === clip.start ? 0 : clip.start;
    return clip.start === 0 && clip.frames ? extended() : clip.start;
  };
  const extended = () => find('#edit-where').value === 'after' ? clip.facts.seconds - clip.frames / edit.limits().fps : 0;

  const lengthOption = frames => {
    const seconds = (frames / edit.limits().fps).toFixed(1);
    return new Option(fill(words().lengths, {frames, seconds}), frames);
  };
  // The lengths of a model whose videos need not be as long as a clip; the one that was chosen stays if it is offered.
  const showLengths = () => {
    const own = edit.limits(), field = find('#edit-length'), before = Number(field.value);
    if (!['extend', 'keys'].some(way => own.ways.includes(way))) return;
    field.replaceChildren(...own.frame_counts.map(lengthOption));
    field.value = own.frame_counts.includes(before) ? before : own.num_frames;
    pictures.keepWithin();
  };
  // How strongly a clip may be followed, and what one asks that the model sees beside the video.
  const showScale = way => {
    const {beside, scaled, scales, ways} = edit.limits(), field = find('#edit-scale');
    find('.scale').hidden = !(scaled.includes(way) && ways.includes(way));
    [field.min, field.max] = scales;
    find('.scale output').textContent = Number(field.value).toFixed(2);
    for (const one of element.querySelectorAll('.beside')) one.hidden = !beside;
  };
  // Where this model lets a clip go on.
  const showEnds = () => {
    const field = find('#edit-where'), ends = edit.limits().extends;
    for (const option of field.options) option.disabled = !ends.includes(option.value);
    if (ends.length && !ends.includes(field.value)) field.value = ends[0];
  };
  // How much of the clip the new video may see: whole latent frames, and no more than half of it.
  const showOverlap = () => {
    if (current() !== 'extend' || !clip.facts) return;
    const length = pictures.lastFrame() + 1, field = find('#edit-overlap');
    const most = Math.min(clip.frames, (length + 1) / 2), {wanted} = field.dataset;
    const {first_frames: first, frame_step: step} = edit.limits();
    for (const option of field.options) option.disabled = option.value > most || (option.value - first) % step !== 0;
    field.value = [...field.options].find(one => !one.disabled && Number(one.value) <= (wanted ?? most)).value;
    const where = find('#edit-where').value, overlap = Number(field.value);
    const at = (where === 'after' ? clip.end() : clip.start).toFixed(2);
    find('#edit-goes').textContent = fill(words()[`goes_${where}`], {overlap, at, new: length - overlap});
  };

  // Margins: the clip keeps its whole picture in the video's size, and is made smaller where that leaves nothing new.
  const size = () => (find('#edit-size').value || edit.limits().sizes[0].join('x')).split('x').map(Number);
  const margins = () => SIDES.map(side => Math.max(0, Math.trunc(Number(find(`#edit-${side}`).value) || 0)));
  const proposeMargins = () => {
    if (!clip.facts) return;
    const [width, height] = size();
    let scale = Math.min(width / clip.facts.width, height / clip.facts.height);
    const room = () => [width - Math.round(clip.facts.width * scale), height - Math.round(clip.facts.height * scale)];
    if (room()[0] < width / 20 && room()[1] < height / 20) scale *= 0.75;
    const [across, down] = room();
    const half = room => 8 * Math.round(room / 16);
    for (const [side, room] of [['left', across], ['top', down], ['right', across], ['bottom', down]])
      find(`#edit-${side}`).value = half(room);
    showFrame();
  };
  const showFrame = () => {
    const [width, height] = size(), [left, top, right, bottom] = margins(), frame = find('.clip').style;
    const [across, down] = [width - left - right, height - top - bottom];
    frame.setProperty('--frame', width / height);
    frame.setProperty('--left', `${100 * left / width}%`);
    frame.setProperty('--top', `${100 * top / height}%`);
    frame.setProperty('--across', `${Math.max(0, 100 * across / width)}%`);
    frame.setProperty('--down', `${Math.max(0, 100 * down / height)}%`);
    find('#edit-inner').textContent = fill(words().inner, {inner: `${across} × ${down}`, outer: `${width} × ${height}`});
  };

  const references = () => edit.limits().inputs.includes('references') ? pictures.references() : [];
  const beside = () => edit.limits().beside
    ? {control_downscale: Number(find('#edit-downscale').value), loras: find('#edit-loras').value} : {};
  // What the server is sent of all this; `mask` is the path of what was painted.
  const asked = mask => {
    const way = current(), number = id => Number(find(id).value);
    const part = clip.facts && {clip: clip.facts.path, start: clip.start, num_frames: clip.frames};
    const shared = {references: references().map(one => one.path), control_scale: number('#edit-scale')};
    const keyframes = pictures.keys().map(({frame, path}) => ({frame, image: path}));
    const keeps = {keeps_pixels: find('#edit-keeps').checked}, heard = {keeps_sound: find('#edit-keeps-sound').checked};
    return {way, ...{
      anew: () => ({...part, ...heard, strength: number('#edit-strength')}),
      follow: () => ({...part, ...shared, ...beside(), control_kind: find('#edit-kind').value}),
      paint: () => ({...part, ...shared, ...keeps, ...heard, mask}),
      widen: () => ({...part, ...shared, ...keeps, ...heard, margins: margins()}),
      sound: () => ({...part}),
      animate: () => ({...part, ...heard, figure: pictures.figure()?.path, drive_prompt: find('#edit-drive-prompt').value, ...besides.asked()}),
      extend: () => ({
        ...part, ...shared, num_frames: pictures.lastFrame() + 1, end: clip.end(),
        extend: find('#edit-where').value, overlap: number('#edit-overlap'),
      }),
      keys: () => ({...shared, num_frames: pictures.lastFrame() + 1, keyframes}),
    }[way]()};
  };
  const isWhole = () => {
    if (current() === 'keys') return pictures.keys().length + references().length > 0;
    return !!clip.facts && clip.fits && (current() !== 'animate' || (!!pictures.figure() && besides.isWhole()));
  };
  const showMake = () => { find('#edit-make').disabled = !isWhole(); };

  element.addEventListener('change', event => {
    const {id, name, value} = event.target;
    if (name === 'edit-way') choose(value);
    if (id === 'edit-where' && clip.facts) {
      clip.part(extended(), clip.frames);
      moved = clip.start;
    }
    if (id === 'edit-length') pictures.keepWithin();
    if (id === 'edit-overlap') event.target.dataset.wanted = value;
    if (['edit-length', 'edit-overlap', 'edit-where'].includes(id)) { showOverlap(); edit.estimate(); }
    if (id === 'edit-size') { proposeMargins(); showFrame(); }
    if (['edit-keeps', 'edit-kind', 'edit-downscale'].includes(id)) edit.estimate();
  });
  element.addEventListener('input', event => {
    if (event.target.closest('.margins')) showFrame();
    if (event.target.id === 'edit-scale') find('.scale output').textContent = Number(event.target.value).toFixed(2);
  });

  // A file that is dropped anywhere else: a picture is a key frame or a reference, everything else the clip.
  const take = file => {
    const way = current(), isPicture = /^image\//.test(file.type) && (way === 'keys' || file.type !== 'image/gif');
    if (way === 'keys') return pictures.addKeys([file]);
    if (way === 'animate' && isPicture) return pictures.setFigure(file);
    return isPicture && edit.limits().inputs.includes('references') ? pictures.addReferences([file]) : clip.take(file);
  };
  // An earlier video's settings.
  const restore = given => {
    choose(given.way);
    const known = one => ({...one, address: addressOf(one.path)});
    const lengths = find('#edit-length');
    if (!edit.limits().frame_counts.includes(given.num_frames)) lengths.add(lengthOption(given.num_frames));
    for (const [id, value] of [['kind', given.control_kind], ['scale', given.control_scale], ['where', given.extend],
      ['length', given.num_frames], ['downscale', given.control_downscale], ['loras', given.loras]]) if (value !== undefined) find(`#edit-${id}`).value = value;
    const overlaps = find('#edit-overlap');
    if (given.overlap) {
      overlaps.dataset.wanted = given.overlap;
      if (![...overlaps.options].some(one => Number(one.value) === given.overlap))
        overlaps.prepend(new Option(fill(words().overlaps, {frames: given.overlap}), given.overlap));
    }
    find('.scale output').textContent = Number(find('#edit-scale').value).toFixed(2);
    find('#edit-keeps').checked = given.keeps_pixels ?? true;
    find('#edit-keeps-sound').checked = given.keeps_sound ?? true;
    if (given.margins) SIDES.forEach((side, place) => { find(`#edit-${side}`).value = given.margins[place]; });
    const figure = given.figure ? known(given.figure) : null;
    besides.restore(given.besides);
    pictures.restore((given.keyframes ?? []).map(known), (given.references ?? []).map(known), figure);
    showFrame();
    pictures.keepWithin();
    if (given.mask) brush.show(given.mask, addressOf(given.mask.path));
  };

  return {asked, choose, current, isWhole, proposeMargins, restore, showLengths, showMake, showOverlap, take};
})();

