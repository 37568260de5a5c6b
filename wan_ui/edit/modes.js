// The modes of Edit: their controls, and the request's fields of each mode.
import { find, findAll, on } from '../components/dom.js';
import { addressOf } from '../components/http.js';
import { fill } from '../components/text.js';
import { isOverlap, mostOverlap, proposedMargins } from './clip_math.js';

const SIDES = ['left', 'top', 'right', 'bottom'];
/** Fields that `restore` fills with a setting: the setting's name by the field's id. */
const RESTORED = {
  'edit-kind': 'control_kind',
  'edit-scale': 'control_scale',
  'edit-where': 'extend',
  'edit-length': 'num_frames',
  'edit-downscale': 'control_downscale',
};

/** @typedef {import('./clip_math.js').Limits} Limits */
/** @typedef {{path: string, name: string}} KnownFile */

/** @param {ViewClient} client
 * @param {{limits: () => Limits, usualLength: () => number, choosePreset: (way: string) => void, estimate: () => void,
 *   limitsOf: (option: HTMLOptionElement) => Limits, clip: import('./clip.js').Clip,
 *   settings: ReturnType<typeof import('../form/settings.js').createSettings>,
 *   brush: ReturnType<typeof import('./brush.js').createBrush>,
 *   pictures: ReturnType<typeof import('./pictures.js').createPictures>,
 *   extraClips: ReturnType<typeof import('./extra_clips.js').createExtraClips>}} view */
export const createModes = (client, view) => {
  const { element, words, note, one, input, select, button } = client;
  const { clip, brush, pictures, extraClips, limits, settings } = view;
  /** The start of the part that Extend selected at the end of the clip. @type {number | null} */
  let moved = null;

  const current = () => /** @type {Field | null} */ (find('[name="edit-way"]:checked', element))?.value ?? 'anew';

  /** Selects a mode, and another model if the current one does not support it. @param {string} way */
  const choose = way => {
    const picker = find('#edit-preset', element);
    if (!(picker instanceof HTMLSelectElement)) return;
    if (!limits().ways.includes(way)) {
      const able = [...picker.options].find(option => view.limitsOf(option).ways.includes(way));
      if (!able) return;
      picker.value = able.value;
      return view.choosePreset(way);
    }
    const radio = input(`[name="edit-way"][value="${way}"]`);
    radio.checked = true;
    one('.choose .hint').textContent = radio.dataset.hint ?? '';
    one('.edit').dataset.way = way;
    const placeholder = { sound: words().placeholder_sound, animate: words().placeholder_animate }[way] ?? words().placeholder;
    Object.assign(one('#edit-prompt'), { placeholder });
    for (const part of findAll('[data-of]', element)) part.hidden = !part.dataset.of?.split(' ').includes(way);
    for (const part of findAll('[data-takes]', element)) part.hidden = !limits().inputs.includes(part.dataset.takes ?? '');
    settings.show(limits().controls, way);
    const { beside, extends: ends, scaled, scales, ways } = limits();
    one('.scale').hidden = !(scaled.includes(way) && ways.includes(way));
    Object.assign(input('#edit-scale'), { min: scales[0], max: scales[1] });
    showScaleValue();
    for (const part of findAll('.beside', element)) part.hidden = !beside;
    // The visitor enters the control LoRA in More settings, under LoRAs.
    if (beside && way === 'follow') one('.settings .more').setAttribute('open', '');
    const where = select('#edit-where');
    for (const option of where.options) option.disabled = !ends.includes(option.value);
    if (ends.length && !ends.includes(where.value)) where.value = ends[0];
    one('.timeline').hidden ||= !clip.facts;
    one('#edit-canvas').hidden = way !== 'paint' || !clip.facts;
    if (way !== 'paint') one('.ring').hidden = true;
    note('');
    clip.drawFilm();
    showFrame();
    pictures.show();
    const before = clip.start;
    if (clip.facts) clip.selectPart(startOf(way), clip.frames || view.usualLength());
    if (way !== 'extend') moved = null;
    else if (clip.start !== before) moved = clip.start;
    brush.setPlaying(false);
  };
  /** Returns the start of the part. Extend uses the end of the clip, unless the visitor chose a part. @param {string} way */
  const startOf = way => {
    if (way !== 'extend') return moved === clip.start ? 0 : clip.start;
    return clip.start === 0 && clip.frames ? extendedStart() : clip.start;
  };
  const extendedStart = () =>
    select('#edit-where').value === 'after' && clip.facts ? clip.facts.seconds - clip.frames / limits().fps : 0;

  const lengthOption = (/** @type {number} */ frames) => {
    const seconds = (frames / limits().fps).toFixed(1);
    return new Option(fill(words().lengths, { frames, seconds }), String(frames));
  };
  /** Offers the lengths of a model whose videos can differ from the clip's length. Keeps a selected length if it is offered.
   * @param {boolean} [isSameModel] Whether a loaded length that the model does not offer stays. */
  const showLengths = isSameModel => {
    const { ways, frame_counts: counts, num_frames: usual } = limits();
    const field = select('#edit-length');
    const before = Number(field.value);
    if (!['extend', 'keys'].some(way => ways.includes(way))) return;
    const shown = isSameModel && !counts.includes(before) ? [...counts, before] : counts;
    field.replaceChildren(...shown.map(lengthOption));
    field.value = String(shown.includes(before) ? before : usual);
    pictures.keepWithin();
  };
  const showScaleValue = () => {
    one('.scale output').textContent = Number(input('#edit-scale').value).toFixed(2);
  };
  /** @param {number} count */
  const overlapLabel = count => (count === 1 ? words().overlaps_one : fill(words().overlaps, { frames: count }));
  /** Enables the overlaps that the new video can have with the clip. */
  const showOverlap = () => {
    if (current() !== 'extend' || !clip.facts) return;
    const length = pictures.lastFrame() + 1;
    const field = select('#edit-overlap');
    const wanted = Number(field.dataset.wanted ?? mostOverlap(clip.frames, length));
    for (const option of field.options) option.disabled = !isOverlap(Number(option.value), clip.frames, length, limits());
    const best = [...field.options].find(option => !option.disabled && Number(option.value) <= wanted);
    if (best) field.value = best.value;
    const where = select('#edit-where').value;
    const count = Number(field.value);
    const overlap = overlapLabel(count);
    const at = (where === 'after' ? clip.end() : clip.start).toFixed(2);
    one('#edit-goes').textContent = fill(words()[`goes_${where}`], { overlap, at, new: length - count });
  };

  const size = () => (settings.value('resolution') || limits().sizes[0].join('x')).split('x').map(Number);
  const margins = () => SIDES.map(side => Math.max(0, Math.trunc(Number(input(`#edit-${side}`).value) || 0)));
  const setMargins = (/** @type {readonly number[]} */ values) => {
    for (const [place, side] of SIDES.entries()) input(`#edit-${side}`).value = String(values[place]);
  };
  const proposeMargins = () => {
    if (clip.facts) setMargins(proposedMargins(size(), clip.facts));
    showFrame();
  };
  const showFrame = () => {
    const [width, height] = size();
    const [left, top, right, bottom] = margins();
    const [across, down] = [width - left - right, height - top - bottom];
    const { style } = one('.clip');
    style.setProperty('--frame', String(width / height));
    style.setProperty('--left', `${(100 * left) / width}%`);
    style.setProperty('--top', `${(100 * top) / height}%`);
    style.setProperty('--across', `${Math.max(0, (100 * across) / width)}%`);
    style.setProperty('--down', `${Math.max(0, (100 * down) / height)}%`);
    one('#edit-inner').textContent = fill(words().inner, { inner: `${across} × ${down}`, outer: `${width} × ${height}` });
  };

  /** Returns the mode's fields of the request. @param {string} [mask] The path of the painted mask. */
  const requestFields = mask => {
    const way = current();
    const num_frames = pictures.lastFrame() + 1;
    const part = clip.facts && { clip: clip.facts.path, start: clip.start, num_frames: clip.frames };
    const references = pictures.references().map(picture => picture.path);
    const shared = { references, control_scale: Number(input('#edit-scale').value) };
    const kept = { ...part, ...shared, keeps_pixels: input('#edit-keeps').checked };
    const controlLora = limits().beside && { control_downscale: Number(select('#edit-downscale').value) };
    const extended = { num_frames, end: clip.end(), extend: select('#edit-where').value };
    const drive_prompt = /** @type {HTMLTextAreaElement} */ (one('#edit-drive-prompt')).value;
    /** @type {Record<string, object | null>} */
    const fields = {
      anew: { ...part, strength: Number(input('#edit-strength').value) },
      follow: { ...part, ...shared, ...controlLora, control_kind: select('#edit-kind').value },
      paint: { ...kept, mask },
      widen: { ...kept, margins: margins() },
      sound: part,
      animate: { ...part, figure: pictures.figure()?.path, drive_prompt, ...extraClips.requestFields() },
      extend: { ...part, ...shared, ...extended, overlap: Number(select('#edit-overlap').value) },
      keys: { ...shared, num_frames, keyframes: pictures.keys().map(({ frame, path }) => ({ frame, image: path })) },
    };
    return { way, ...fields[way] };
  };
  /** Returns whether all inputs of the mode are present. */
  const isComplete = () => {
    if (current() === 'keys') return pictures.keys().length + pictures.references().length > 0;
    if (!clip.facts || !clip.fits) return false;
    return current() !== 'animate' || (pictures.figure() !== null && extraClips.isComplete());
  };
  const showMake = () => {
    button('#edit-make').disabled = !isComplete();
  };

  on(element, 'change', '[name="edit-way"]', (/** @type {HTMLInputElement} */ { value }) => choose(value));
  on(element, 'change', '#edit-where', () => {
    if (!clip.facts) return;
    clip.selectPart(extendedStart(), clip.frames);
    moved = clip.start;
  });
  on(element, 'change', '#edit-length', () => pictures.keepWithin());
  on(element, 'change', '#edit-overlap', (/** @type {HTMLSelectElement} */ { dataset, value }) => {
    dataset.wanted = value;
  });
  on(element, 'change', '#edit-length, #edit-overlap, #edit-where', showOverlap);
  on(element, 'change', '#edit-resolution', proposeMargins);
  on(element, 'change', '#edit-length, #edit-overlap, #edit-where, #edit-keeps, #edit-kind, #edit-downscale', view.estimate);
  on(element, 'input', '.margins', showFrame);
  on(element, 'input', '#edit-scale', showScaleValue);

  /** Accepts a dropped file. In Keyframes, each file becomes a keyframe. Elsewhere an image becomes the person of Animate, or a
   * reference image if the model takes references. Any other file becomes the clip.
   * @param {File} file */
  const takeFile = file => {
    const way = current();
    const isPicture = /^image\//.test(file.type) && (way === 'keys' || file.type !== 'image/gif');
    if (way === 'keys') return pictures.addKeys([file]);
    if (way === 'animate' && isPicture) return pictures.setFigure(file);
    return isPicture && limits().inputs.includes('references') ? pictures.addReferences([file]) : clip.load(file);
  };

  /** Shows the settings of an earlier video. @param {Record<string, any>} given */
  const restore = given => {
    choose(given.way);
    showLengths(true); // the loaded frame rate changes the seconds of each length
    const lengths = select('#edit-length');
    if (!limits().frame_counts.includes(given.num_frames)) lengths.add(lengthOption(given.num_frames));
    for (const [id, name] of Object.entries(RESTORED))
      if (given[name] !== undefined) Object.assign(one(`#${id}`), { value: given[name] });
    if (given.overlap) {
      const overlaps = select('#edit-overlap');
      overlaps.dataset.wanted = given.overlap;
      if (![...overlaps.options].some(option => Number(option.value) === given.overlap))
        overlaps.prepend(new Option(overlapLabel(given.overlap), given.overlap));
    }
    showScaleValue();
    input('#edit-keeps').checked = given.keeps_pixels ?? true;
    if (given.margins) setMargins(given.margins);
    /** @template {KnownFile} T @param {T} file */
    const known = file => ({ ...file, address: addressOf(file.path) });
    const { keyframes = [], references = [], figure, mask } = given;
    extraClips.restore(given.besides);
    pictures.restore(keyframes.map(known), references.map(known), figure ? known(figure) : null);
    showFrame();
    pictures.keepWithin();
    if (mask) brush.show(mask, addressOf(mask.path));
  };

  /** Shows what depends on the settings: the rate changes the seconds of lengths and parts. */
  const settingsChanged = () => {
    showLengths(true);
    showFrame();
    if (clip.facts) clip.selectPart(clip.start, clip.frames);
  };

  const shows = { proposeMargins, showLengths, showMake, showOverlap };
  return { settingsChanged, requestFields, choose, current, isComplete, restore, takeFile, ...shows };
};
