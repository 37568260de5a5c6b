// The edit view: the settings of the chosen model, what is asked for, and how long that takes. Its parts do not know each other: each
// calls back when something changed.
import { takeFiles } from '../assets/files.js';
import { fieldValue, filesOf, find, findAll, on, togglePlaying } from '../components/dom.js';
import { addressOf, createViewClient } from '../components/http.js';
import { fill } from '../components/text.js';
import { createBrush } from './brush.js';
import { createClip } from './clip.js';
import { usualLength as lengthOf, nearestSize, stepsOf } from './clip_math.js';
import { createExtraClips } from './extra_clips.js';
import { createWays } from './modes.js';
import { createPictures } from './pictures.js';

const ESTIMATE_MILLISECONDS = 300; // without a change, before the estimate is asked for

/** @typedef {import('./clip_math.js').Limits} Limits */

/** @param {GradioComponent} component @param {readonly string[]} events */
export const startEdit = ({ element, trigger, watch }, [queued]) => {
  const client = createViewClient(element, 'edit');
  const { words, note, send, post, one, input, select } = client;
  let usual = 0; // the usual length of the model that was chosen last
  let filled = ''; // the settings that were shown last

  /** What the chosen model allows; null if the visitor has no model. @returns {Limits | null} */
  const limitsOrNone = () => {
    const picker = find('#edit-preset', element);
    return picker instanceof HTMLSelectElement ? JSON.parse(picker.selectedOptions[0]?.dataset.limits ?? 'null') : null;
  };
  const limits = () => {
    const found = limitsOrNone();
    if (!found) throw new Error('no model is chosen');
    return found;
  };
  const usualLength = () => lengthOf(limits(), clip.facts?.seconds ?? null);

  let timer = 0;
  /** Asks how long the video takes, when nothing has changed for a moment. */
  const estimate = () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const line = find('.edit-estimate', element);
      if (line && ways.isComplete()) showEstimate(line, asked());
      else line?.replaceChildren();
    }, ESTIMATE_MILLISECONDS);
  };
  /** @param {HTMLElement} line @param {object} request */
  const showEstimate = async (line, request) => {
    try {
      line.innerHTML = (await (await post('/estimate', request)).json()).html ?? ''; // the server has escaped it
    } catch {
      line.textContent = '';
    }
  };
  const picturesChanged = () => {
    ways.showMake();
    estimate();
  };

  const brush = createBrush(client, { clip: () => clip.facts, isPainting: () => ways.current() === 'paint', changed: estimate });
  const pictures = createPictures(client, { limits: limitsOrNone, changed: picturesChanged });
  const extraClips = createExtraClips(client, { limits: limitsOrNone, changed: picturesChanged });
  const clip = createClip(client, {
    limits,
    isExtending: () => ways.current() === 'extend',
    shown: () => {
      chooseSize();
      ways.proposeMargins();
      brush.clear();
      clip.part(0, usualLength());
      ways.choose(ways.current());
      estimateLarger();
    },
    partChanged: () => {
      ways.showMake();
      ways.showOverlap();
      estimate();
      brush.setPlaying();
    },
    restarted: () => brush.setPlaying(),
  });
  /** @param {string} [way] */
  const choosePreset = (way = ways.current()) => {
    const own = limitsOrNone();
    if (!own) return;
    const set = {
      steps: own.steps,
      guidance: own.guidance[0],
      'guidance-low': own.guidance.at(-1),
      negative: own.negative_prompt,
    };
    for (const [id, value] of Object.entries({ ...set, 'drive-prompt': own.drive_prompt }))
      Object.assign(one(`#edit-${id}`), { value });
    const low = input('#edit-guidance-low').closest('label');
    if (low) low.hidden = own.guidance.length < 2;
    const asPicture = own.ways.includes('animate') ? [new Option(words().image_shape, '')] : [];
    select('#edit-size').replaceChildren(...asPicture, ...own.sizes.map(sizeOption));
    chooseSize();
    showStrength();
    if (clip.frames === usual) clip.frames = usualLength(); // nobody has asked for another length
    usual = usualLength();
    ways.showLengths();
    ways.proposeMargins();
    ways.choose(own.ways.includes(way) ? way : own.ways[0]);
  };
  const ways = createWays(client, { limits, usualLength, choosePreset, estimate, clip, brush, pictures, extraClips });

  /** @param {number[]} size */
  const sizeOption = ([width, height]) => new Option(`${width} × ${height}`, `${width}x${height}`);
  /** Chooses the size whose shape is nearest to the clip's; a character's video has that of its picture. */
  const chooseSize = () => {
    const own = limitsOrNone();
    if (!own || !clip.facts || own.ways.includes('animate')) return;
    select('#edit-size').value = nearestSize(own.sizes, clip.facts).join('x');
  };
  const showStrength = () => {
    const strength = Number(input('#edit-strength').value);
    const steps = Number(input('#edit-steps').value);
    const text = fill(words().steps, { count: stepsOf(steps, strength), steps });
    one('.strength output').textContent = `${strength.toFixed(2)} · ${text}`;
  };
  on(element, 'input', target => {
    if (['edit-strength', 'edit-steps'].includes(target.id)) showStrength();
    if (target.closest('.asked') && target.id !== 'edit-prompt') estimate();
  });
  on(element, 'change', target => {
    if (target.id === 'edit-preset') choosePreset();
    if (target.id === 'edit-larger') estimateLarger();
    if (target.id !== 'edit-file') return;
    const [file] = filesOf(target);
    if (file) clip.take(file);
  });

  /** What the server is sent. @param {string} [mask] The path of what was painted. */
  const asked = mask => {
    /** @param {string} id */
    const number = id => (input(id).value === '' ? null : Number(input(id).value));
    const chosen = select('#edit-size').value;
    const [width, height] = chosen ? chosen.split('x').map(Number) : [null, null];
    const guidance = [number('#edit-guidance'), number('#edit-guidance-low')].slice(0, limits().guidance.length);
    return {
      preset: select('#edit-preset').value,
      prompt: fieldValue(one('#edit-prompt')),
      negative_prompt: fieldValue(one('#edit-negative')),
      ...ways.asked(mask),
      width,
      height,
      steps: number('#edit-steps'),
      seed: number('#edit-seed'),
      guidance: guidance.includes(null) ? null : guidance,
      kept: kept(),
    };
  };
  /** The settings of a loaded video that have no field here, unless the visitor removed them. */
  const kept = () => Object.assign({}, ...findAll('[data-kept]', element).map(one => JSON.parse(one.dataset.kept ?? '{}')));
  /** @param {Element} chip */
  const removeKept = chip => {
    const box = chip.closest('.kept');
    chip.remove();
    if (!box?.querySelector('[data-kept]')) box?.remove();
    estimate();
  };
  const make = async () => {
    const button = client.button('#edit-make');
    if (!ways.isComplete()) return;
    button.disabled = true;
    const mask = ways.current() === 'paint' ? await brush.path() : undefined;
    if (mask === '') note(words().unpainted);
    else if (mask !== null) await queue(asked(mask));
    button.disabled = false;
  };
  /** @param {object} request */
  const queue = async request => {
    const given = await send('', request);
    if (given) trigger(queued, { what: 'queued', job: given.job });
  };
  /** The request to upscale the whole clip, as it is. */
  const largerRequest = () => {
    if (!clip.facts) return null;
    const { path, width, height, seconds, fps } = clip.facts;
    return { way: 'upscale', clip: path, width, height, seconds, fps, upscale: select('#edit-larger').value };
  };
  const estimateLarger = async () => {
    const line = find('.larger output', element);
    const request = line && largerRequest();
    if (request) await showEstimate(line, request);
  };
  /** @param {HTMLButtonElement} button */
  const makeLarger = async button => {
    const request = largerRequest();
    if (!request) return;
    button.disabled = true;
    await queue(request);
    button.disabled = false;
  };
  on(element, 'click', target => {
    const chip = target.closest('[data-kept]');
    if (chip) removeKept(chip);
    if (target.id === 'edit-upscale' && target instanceof HTMLButtonElement) makeLarger(target);
    if (target.id === 'edit-make') make();
    if (target.id === 'edit-stop' && target instanceof HTMLElement) target.dataset.job = find('.stage')?.dataset.job ?? '';
    if (target instanceof HTMLVideoElement && target.id === 'edit-player') togglePlaying(target);
  });
  on(
    element,
    'error',
    target => {
      if (target.id === 'edit-player') clip.cannotPlay();
    },
    true,
  );
  takeFiles('.edit', ways.take);

  /** The page was opened, or an earlier video's settings are shown. */
  const open = () => {
    const view = find('.edit', element);
    const text = view?.dataset.fill ?? 'null';
    if (!view?.dataset.clip) clip.facts = null; // the view was drawn again
    choosePreset();
    const given = JSON.parse(text);
    if (!given || text === filled) return;
    filled = text;
    const picker = select('#edit-preset');
    if ([...picker.options].some(option => option.value === given.preset)) picker.value = given.preset;
    choosePreset();
    if (given.clip) clip.show(given.clip, addressOf(given.clip.path), /\.gif$/i.test(given.clip.name));
    const sizes = select('#edit-size');
    const size = `${given.width}x${given.height}`;
    if (picker.value === given.preset && ![...sizes.options].some(option => option.value === size))
      sizes.add(sizeOption([given.width, given.height]));
    const fields = {
      prompt: given.prompt,
      negative: given.negative_prompt,
      strength: given.strength ?? input('#edit-strength').defaultValue,
      steps: given.steps,
      seed: given.seed,
      guidance: given.guidance[0],
      'guidance-low': given.guidance.at(-1),
      'drive-prompt': given.drive_prompt || limits().drive_prompt,
      size,
    };
    for (const [id, value] of Object.entries(fields)) Object.assign(one(`#edit-${id}`), { value });
    if (!sizes.value) chooseSize(); // another model, which does not offer the size
    showStrength();
    ways.restore(given);
    if (given.clip) clip.part(given.start, Math.round((given.end - given.start) * limits().fps));
  };
  watch('value', open);
  open();
};
