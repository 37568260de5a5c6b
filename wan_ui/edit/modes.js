// The modes of Edit: their controls, and the request's fields of each mode.
import { fieldValue, find, findAll, on } from '../components/dom.js';
import { addressOf } from '../components/http.js';
import { fill } from '../components/text.js';
import { isOverlap, mostOverlap, proposedMargins } from './clip_math.js';

const SIDES = ['left', 'top', 'right', 'bottom'];
/** Fields that `restore` fills with a setting: the setting's name by the field's id without `edit-`. */
const RESTORED = {
  kind: 'control_kind',
  scale: 'control_scale',
  where: 'extend',
  length: 'num_frames',
  downscale: 'control_downscale',
};

/** @typedef {import('./clip_math.js').Limits} Limits */
/** @typedef {{path: string, name: string}} KnownFile */

/**
 * @param {import('../components/http.js').ViewClient} client
 * @param {{
 *   limits: () => Limits,
 *   usualLength: () => number,
 *   choosePreset: (way: string) => void,
 *   estimate: () => void,
 *   settings: ReturnType<typeof import('../form/settings.js').createSettings>,
 *   limitsOf: (option: HTMLOptionElement) => Limits,
 *   clip: import('./clip.js').Clip,
 *   brush: ReturnType<typeof import('./brush.js').createBrush>,
 *   pictures: ReturnType<typeof import('./pictures.js').createPictures>,
 *   extraClips: ReturnType<typeof import('./extra_clips.js').createExtraClips>,
 * }} view
 */
export const createModes = (client, view) => {
  const { element, words, note, one, input, select, button } = client;
  const { clip, brush, pictures, extraClips, limits, settings } = view;
  /** The start of the part that Extend selected at the end of the clip. @type {number | null} */
  let moved = null;

  const current = () => {
    const chosen = find('[name="edit-way"]:checked', element);
    return chosen ? fieldValue(chosen) : 'anew';
  };

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
    const placeholders = { sound: words().placeholder_sound, animate: words().placeholder_animate };
    const prompt = /** @type {HTMLTextAreaElement} */ (one('#edit-prompt'));
    prompt.placeholder = { ...placeholders }[way] ?? words().placeholder;
    for (const part of findAll('[data-of]', element)) part.hidden = !part.dataset.of?.split(' ').includes(way);
    for (const part of findAll('[data-takes]', element)) part.hidden = !limits().inputs.includes(part.dataset.takes ?? '');
    settings.show(limits().controls, way);
    showScale(way);
    showEnds();
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

  /** @param {number} frames */
  const lengthOption = frames => {
    const seconds = (frames / limits().fps).toFixed(1);
    return new Option(fill(words().lengths, { frames, seconds }), String(frames));
  };
  /**
   * Offers the lengths of a model whose videos can differ from the clip's length. Keeps a selected length if it is offered.
   * @param {boolean} [isSameModel] Whether a loaded length that the model does not offer stays.
   */
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
  /** Shows the control strength, and the fields of models with a control LoRA. @param {string} way */
  const showScale = way => {
    const { beside, scaled, scales, ways } = limits();
    const field = input('#edit-scale');
    one('.scale').hidden = !(scaled.includes(way) && ways.includes(way));
    [field.min, field.max] = scales.map(String);
    showScaleValue();
    for (const part of findAll('.beside', element)) part.hidden = !beside;
    // The visitor enters the control LoRA in More settings, under LoRAs.
    if (beside && way === 'follow') one('.settings .more').setAttribute('open', '');
  };
  /** Enables the ends at which this model can extend a clip. */
  const showEnds = () => {
    const field = select('#edit-where');
    const ends = limits().extends;
    for (const option of field.options) option.disabled = !ends.includes(option.value);
    if (ends.length && !ends.includes(field.value)) field.value = ends[0];
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
  /** @param {readonly number[]} values */
  const setMargins = values => {
    for (const [place, side] of SIDES.entries()) input(`#edit-${side}`).value = String(values[place]);
  };
  const proposeMargins = () => {
    if (!clip.facts) return;
    setMargins(proposedMargins(size(), clip.facts));
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
    const keepPixels = { keeps_pixels: input('#edit-keeps').checked };
    const part = clip.facts && { clip: clip.facts.path, start: clip.start, num_frames: clip.frames };
    const references = pictures.references().map(picture => picture.path);
    const shared = { references, control_scale: Number(input('#edit-scale').value) };
    const num_frames = pictures.lastFrame() + 1;
    const controlLora = limits().beside && { control_downscale: Number(select('#edit-downscale').value) };
    /** @type {Record<string, () => object>} */
    const fields = {
      anew: () => ({ ...part, strength: Number(input('#edit-strength').value) }),
      follow: () => ({ ...part, ...shared, ...controlLora, control_kind: select('#edit-kind').value }),
      paint: () => ({ ...part, ...shared, ...keepPixels, mask }),
      widen: () => ({ ...part, ...shared, ...keepPixels, margins: margins() }),
      sound: () => ({ ...part }),
      animate: () => ({
        ...part,

        figure: pictures.figure()?.path,
        drive_prompt: fieldValue(one('#edit-drive-prompt')),
        ...extraClips.requestFields(),
      }),
      extend: () => ({
        ...part,
        ...shared,
        num_frames,
        end: clip.end(),
        extend: select('#edit-where').value,
        overlap: Number(select('#edit-overlap').value),
      }),
      keys: () => ({ ...shared, num_frames, keyframes: pictures.keys().map(({ frame, path }) => ({ frame, image: path })) }),
    };
    return { way, ...fields[way]() };
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

  on(element, 'change', target => {
    const { id } = target;
    if (target instanceof HTMLInputElement && target.name === 'edit-way') choose(target.value);
    if (id === 'edit-where' && clip.facts) {
      clip.selectPart(extendedStart(), clip.frames);
      moved = clip.start;
    }
    if (id === 'edit-length') pictures.keepWithin();
    if (id === 'edit-overlap') /** @type {HTMLElement} */ (target).dataset.wanted = fieldValue(target);
    if (['edit-length', 'edit-overlap', 'edit-where'].includes(id)) {
      showOverlap();
      view.estimate();
    }
    if (id === 'edit-resolution') {
      proposeMargins();
      showFrame();
    }
    if (['edit-keeps', 'edit-kind', 'edit-downscale'].includes(id)) view.estimate();
  });
  on(element, 'input', target => {
    if (target.closest('.margins')) showFrame();
    if (target.id === 'edit-scale') showScaleValue();
  });

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
      if (given[name] !== undefined) Object.assign(one(`#edit-${id}`), { value: given[name] });
    if (given.overlap) {
      const overlaps = select('#edit-overlap');
      overlaps.dataset.wanted = given.overlap;
      if (![...overlaps.options].some(option => Number(option.value) === given.overlap)) {
        overlaps.prepend(new Option(overlapLabel(given.overlap), given.overlap));
      }
    }
    showScaleValue();
    input('#edit-keeps').checked = given.keeps_pixels ?? true;
    if (given.margins) setMargins(given.margins);
    /** @template {KnownFile} T @param {T} file */
    const known = file => ({ ...file, address: addressOf(file.path) });
    extraClips.restore(given.besides);
    pictures.restore(
      (given.keyframes ?? []).map(known),
      (given.references ?? []).map(known),
      given.figure ? known(given.figure) : null,
    );
    showFrame();
    pictures.keepWithin();
    if (given.mask) brush.show(given.mask, addressOf(given.mask.path));
  };

  /** Shows what depends on the settings: the rate changes the seconds of lengths and parts. */
  const settingsChanged = () => {
    showLengths(true);
    showFrame();
    if (clip.facts) clip.selectPart(clip.start, clip.frames);
  };

  return {
    settingsChanged,
    requestFields,
    choose,
    current,
    isComplete,
    proposeMargins,
    restore,
    showLengths,
    showMake,
    showOverlap,
    takeFile,
  };
};
