// The edit view: the settings of the selected model, the request and its estimate. The modules of the view do not import each
// other. Each module receives functions to call after a change.
import { takeFiles } from '../assets/files.js';
import { find, on, onFiles, togglePlaying } from '../components/dom.js';
import { addressOf, createViewClient, parsedData } from '../components/http.js';
import { fill } from '../components/text.js';
import { createSettings } from '../form/settings.js';
import { createBrush } from './brush.js';
import { createClip } from './clip.js';
import { usualLength as lengthOf, nearestSize, stepsOf } from './clip_math.js';
import { createExtraClips } from './extra_clips.js';
import { createModes } from './modes.js';
import { createPictures } from './pictures.js';

const ESTIMATE_MILLISECONDS = 300; // without a change, before the estimate is requested

/** @typedef {import('./clip_math.js').Limits} Limits */

/** @param {GradioComponent} component @param {readonly string[]} events */
export const startEdit = ({ element, trigger, watch }, [queued]) => {
  const client = createViewClient(element, 'edit');
  const { words, note, send, post, one, input, select } = client;
  const settings = createSettings(client, own => {
    select('#edit-preset').value = own.preset;
    choosePreset();
    settings.fill(own.settings);
    showStrength();
    modes.settingsChanged();
    estimate();
  });
  let usual = 0; // the usual length of the previously selected model
  let filled = ''; // the settings that were loaded last

  /** Returns the limits of an option of the models' menu. @param {HTMLOptionElement} option @returns {Limits} */
  const limitsOf = option => parsedData(option, 'limits');
  /** Returns the limits of the selected model, null without a model. @returns {Limits | null} */
  const limitsOrNone = () => {
    const option = /** @type {HTMLSelectElement | null} */ (find('#edit-preset', element))?.selectedOptions[0];
    if (!option) return null;
    const own = limitsOf(option);
    const fps = settings.value('fps') ?? 0;
    return { ...own, fps: fps > 0 ? fps : own.controls.fps.value };
  };
  const limits = () => /** @type {Limits} */ (limitsOrNone());
  const usualLength = () => lengthOf(limits(), clip.facts?.seconds ?? null);

  let timer = 0;
  /** Requests the estimate after a moment without a change. */
  const estimate = () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const line = find('.edit-estimate', element);
      if (line && modes.isComplete()) showEstimate(line, buildRequest());
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
  const imagesChanged = () => {
    modes.showMake();
    estimate();
  };

  const brush = createBrush(client, { clip: () => clip.facts, isPainting: () => modes.current() === 'paint', changed: estimate });
  const pictures = createPictures(client, { limits: limitsOrNone, changed: imagesChanged });
  const extraClips = createExtraClips(client, { limits: limitsOrNone, changed: imagesChanged });
  const clip = createClip(client, {
    limits,
    isExtending: () => modes.current() === 'extend',
    shown: () => {
      chooseSize();
      modes.proposeMargins();
      brush.clear();
      clip.selectPart(0, usualLength());
      modes.choose(modes.current());
      showUpscaleEstimate();
    },
    partChanged: () => {
      modes.showMake();
      modes.showOverlap();
      estimate();
      brush.setPlaying();
    },
    restarted: () => brush.setPlaying(),
  });
  /** @param {string} [way] */
  const choosePreset = (way = modes.current()) => {
    const own = limitsOrNone();
    if (!own) return;
    settings.show(own.controls, way);
    Object.assign(one('#edit-drive-prompt'), { value: own.drive_prompt });
    chooseSize();
    showStrength();
    if (clip.frames === usual) clip.frames = usualLength(); // the visitor has not chosen another length
    usual = usualLength();
    modes.showLengths();
    modes.proposeMargins();
    modes.choose(own.ways.includes(way) ? way : own.ways[0]);
  };
  const shared = { limits, usualLength, choosePreset, estimate, settings, limitsOf };
  const modes = createModes(client, { ...shared, clip, brush, pictures, extraClips });

  /** Selects the size whose shape is nearest to the clip. Animate uses the shape of the image. */
  const chooseSize = () => {
    const own = limitsOrNone();
    if (!own || !clip.facts || own.ways.includes('animate')) return;
    settings.fill({ resolution: nearestSize(own.sizes, clip.facts).join('x') });
  };
  const showStrength = () => {
    const strength = Number(input('#edit-strength').value);
    const steps = settings.value('steps') ?? 0;
    const text = fill(words().steps, { count: stepsOf(steps, strength), steps });
    one('.strength output').textContent = `${strength.toFixed(2)} · ${text}`;
  };
  on(element, 'input', '#edit-strength, [data-setting]', showStrength);
  on(element, 'input', '.settings', (_, { target }) => {
    if (target !== one('#edit-prompt')) estimate();
  });
  on(element, 'change', '#edit-preset', () => choosePreset());
  on(element, 'change', '#edit-fps', () => modes.settingsChanged());
  on(element, 'change', '#edit-larger', () => showUpscaleEstimate());
  onFiles(element, '#edit-file', ([file]) => clip.load(file));

  /** Returns the request for the server. @param {string} [mask] The path of the painted mask. */
  const buildRequest = mask => ({
    preset: select('#edit-preset').value,
    prompt: /** @type {HTMLTextAreaElement} */ (one('#edit-prompt')).value,
    settings: settings.read(),
    ...modes.requestFields(mask),
  });
  /** Returns the request to upscale the whole clip. */
  const buildUpscaleRequest = () => {
    if (!clip.facts) return null;
    const { path, width, height, seconds, fps } = clip.facts;
    return { way: 'upscale', clip: path, width, height, seconds, fps, upscale: select('#edit-larger').value };
  };
  const showUpscaleEstimate = async () => {
    const line = find('.larger output', element);
    const request = line && buildUpscaleRequest();
    if (request) await showEstimate(line, request);
  };
  const queue = async (/** @type {object} */ request) => {
    const given = await send('', request);
    if (given) trigger(queued, { what: 'queued', job: given.job });
  };
  on(element, 'click', '#edit-upscale-clip', async (/** @type {HTMLButtonElement} */ button) => {
    const request = buildUpscaleRequest();
    if (!request) return;
    button.disabled = true;
    await queue(request);
    button.disabled = false;
  });
  on(element, 'click', '#edit-make', async (/** @type {HTMLButtonElement} */ button) => {
    if (!modes.isComplete()) return;
    button.disabled = true;
    const mask = modes.current() === 'paint' ? await brush.uploadMask() : undefined;
    if (mask === '') note(words().unpainted);
    else if (mask !== null) await queue(buildRequest(mask));
    button.disabled = false;
  });
  on(element, 'click', '#edit-stop', ({ dataset }) => {
    dataset.job = find('.stage')?.dataset.job ?? '';
  });
  on(element, 'click', '#edit-player', (/** @type {HTMLVideoElement} */ player) => togglePlaying(player));
  takeFiles('.edit', modes.takeFile);

  /** Shows the view after the page has opened, or an earlier video's settings. */
  const open = () => {
    const view = find('.edit', element);
    const text = view?.dataset.fill ?? 'null';
    if (!view?.dataset.clip) clip.facts = null; // the server rendered the view again, without the clip
    choosePreset();
    const given = JSON.parse(text);
    if (!given || text === filled) return;
    filled = text;
    const picker = select('#edit-preset');
    if ([...picker.options].some(option => option.value === given.preset)) picker.value = given.preset;
    choosePreset();
    if (given.clip) clip.show(given.clip, addressOf(given.clip.path), /\.gif$/i.test(given.clip.name));
    const fields = {
      prompt: given.prompt,
      strength: given.strength ?? input('#edit-strength').defaultValue,
      'drive-prompt': given.drive_prompt || limits().drive_prompt,
    };
    for (const [id, value] of Object.entries(fields)) Object.assign(one(`#edit-${id}`), { value });
    const { negative_prompt, seed } = given.settings;
    // The values of other settings suit only the model that made the video.
    settings.fill(picker.value === given.preset ? given.settings : { negative_prompt, seed });
    showStrength();
    modes.restore(given);
    if (given.clip) clip.selectPart(given.start, Math.round((given.end - given.start) * limits().fps));
  };
  watch('value', open);
  open();
};
