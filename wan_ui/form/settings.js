// The settings of a view without Gradio components (see `settings_html.py`): shows, reads and fills the fields of a model and mode.
import { create, find, findAll, on, onFirst } from '../components/dom.js';

/** What a control shows, from `preset_controls`. An empty field means the preset's own value.
 * @typedef {{value: any, choices?: [string, any][], limits?: [number, number, number], modes?: string[], guidance?: number}} Control
 * Only `guided_steps` has `guidance`: the value that guidance gets, if it is off, when guided steps are turned on. */
/** @typedef {Record<string, Control>} Controls */
/** @typedef {{name: string, preset: string, settings: Record<string, any>}} OwnPreset */

/** @param {ViewClient} client @param {(own: OwnPreset) => void} loadOwnPreset Shows a preset that the visitor has chosen. */
export const createSettings = ({ element, send }, loadOwnPreset) => {
  /** @type {Controls} */
  let controls = {};
  /** The usual value of each control, from the last model that has it. @type {Record<string, any>} */
  let usual = {};
  /** The fields, to notice that the view was rendered again. @type {HTMLElement[]} */
  let fields = [];

  const nameOf = (/** @type {HTMLElement} */ field) => field.dataset.setting ?? '';
  const inputOf = (/** @type {HTMLElement} */ field) => /** @type {Field} */ (find('input, select, textarea', field));
  /** @param {HTMLElement} field @returns {any} */
  const readField = field => {
    const { checked, type, value } = /** @type {HTMLInputElement} */ (inputOf(field));
    if (type === 'checkbox') return checked;
    return type !== 'number' ? value : value === '' ? null : Number(value);
  };
  /** @param {HTMLElement} field @param {any} value */
  const fillField = (field, value) => {
    const part = inputOf(field);
    if (part instanceof HTMLInputElement && part.type === 'checkbox') part.checked = Boolean(value);
    else part.value = String(value ?? '');
    if (part instanceof HTMLSelectElement && part.value !== String(value)) {
      part.add(new Option(String(value).replace(/^(\d+)x(\d+)$/, '$1 × $2'), value)); // a loaded value that the model does not offer
      part.value = value;
    }
  };
  /** Shows the model's choices. Keeps a value that the visitor has changed, if the model offers it. @param {HTMLElement} field */
  const showControl = field => {
    const name = nameOf(field);
    const { choices, limits, value } = controls[name];
    const part = inputOf(field);
    const before = readField(field);
    const isOffered = choices
      ? choices.some(([, choice]) => choice === before)
      : !limits || (before >= limits[0] && before <= limits[1]);
    const isKept = name in usual && before !== usual[name] && isOffered;
    if (part instanceof HTMLSelectElement)
      part.replaceChildren(...(choices ?? []).map(([text, choice]) => new Option(text, choice)));
    if (part instanceof HTMLInputElement && limits) Object.assign(part, { min: limits[0], max: limits[1], step: limits[2] });
    fillField(field, isKept ? before : value);
    usual[name] = value;
  };
  /** Shows the settings that a model uses in a mode. @param {Controls} next @param {string} mode */
  const show = (next, mode) => {
    const all = findAll('[data-setting]', element);
    if (all[0] !== fields[0]) [fields, usual, controls] = [all, {}, {}];
    const isOther = next !== controls;
    controls = next;
    for (const field of fields) {
      const control = controls[nameOf(field)];
      // A list loses its choices when another language is shown.
      const isEmpty = inputOf(field) instanceof HTMLSelectElement && !find('option', field);
      if (control && (isOther || isEmpty)) showControl(field);
      const isUsed = control ? !control.modes || control.modes.includes(mode) : nameOf(field) === 'seed';
      field.dataset.used = String(isUsed);
    }
    showGuidedSteps();
  };
  const hasGuidedSteps = () => Number(value('guided_steps') ?? 0) > 0;
  /** With guided first steps, the server computes which steps have guidance, so the view does not show the interval. */
  const showGuidedSteps = () => {
    const isComputed = hasGuidedSteps();
    for (const field of fields) {
      const isInterval = ['guidance_start', 'guidance_end'].includes(nameOf(field));
      field.hidden = field.dataset.used === 'false' || (isInterval && isComputed);
    }
  };
  /** Returns the value of a setting, undefined if it is not shown. @param {string} name @returns {any} */
  const value = name => {
    const field = fields.find(one => nameOf(one) === name);
    return field?.dataset.used === 'true' ? readField(field) : undefined;
  };
  /** Returns the values of all settings that are shown. @returns {Record<string, any>} */
  const read = () => Object.fromEntries(fields.filter(field => !field.hidden).map(field => [nameOf(field), readField(field)]));
  /** Fills settings of an earlier video or preset. @param {Record<string, any>} values */
  const fill = values => {
    for (const field of fields) if (nameOf(field) in values) fillField(field, values[nameOf(field)]);
    showGuidedSteps();
  };

  on(element, 'input', '[data-setting="guided_steps"]', () => {
    const isOn = hasGuidedSteps();
    const guidance = isOn ? controls.guided_steps?.guidance : 1;
    if (!isOn || Math.max(value('guidance') ?? 1, value('guidance_low') ?? 1) <= 1) fill({ guidance, guidance_low: guidance });
    showGuidedSteps();
  });
  /** @type {OwnPreset[]} */
  let own = [];
  onFirst(element, 'toggle', '.own[open]', async menu => {
    own = (await send('/presets'))?.presets ?? [];
    const buttons = own.map(({ name }, place) =>
      create('button', { type: 'button', textContent: name, dataset: { own: String(place) } }),
    );
    find('ul', menu)?.replaceChildren(...buttons.map(button => create('li', {}, button)));
  });
  on(element, 'click', '[data-own]', button => {
    loadOwnPreset(own[Number(button.dataset.own)]);
    button.closest('details')?.removeAttribute('open');
  });

  return { fill, read, show, value };
};
