// The settings of a view without Gradio components (see `settings_html.py`): shows, reads and fills the fields of a model and mode.
import { find, findAll, on } from '../components/dom.js';

/** What a control shows, from `preset_controls`. An empty field means the preset's own value.
 * @typedef {{value: any, choices?: [string, any][], limits?: [number, number, number], modes?: string[], guidance?: number}} Control
 * Only `guided_steps` has `guidance`: the value that guidance gets, if it is off, when guided steps are turned on. */
/** @typedef {Record<string, Control>} Controls */
/** @typedef {{name: string, preset: string, settings: Record<string, any>}} OwnPreset */

/**
 * @param {import('../components/http.js').ViewClient} client
 * @param {(own: OwnPreset) => void} loadOwnPreset Shows a preset that the visitor has chosen.
 */
export const createSettings = ({ element, send }, loadOwnPreset) => {
  /** @type {Controls} */
  let controls = {};
  /** The usual value of each control, from the last model that has it. @type {Record<string, any>} */
  let usual = {};
  /** The fields, to notice that the view was rendered again. @type {HTMLElement[]} */
  let fields = [];

  /** @param {HTMLElement} field */
  const nameOf = field => field.dataset.setting ?? '';
  /** @param {HTMLElement} field */
  const inputOf = field =>
    /** @type {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} */ (find('input, select, textarea', field));
  /** @param {HTMLElement} field @returns {any} */
  const readField = field => {
    const part = inputOf(field);
    if (part instanceof HTMLInputElement && part.type === 'checkbox') return part.checked;
    if (part instanceof HTMLInputElement && part.type === 'number') return part.value === '' ? null : Number(part.value);
    return part.value;
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
  /** Returns whether the model offers this value. @param {Control} control @param {any} value */
  const isOffered = ({ choices, limits }, value) => {
    if (choices) return choices.some(([, choice]) => choice === value);
    return !limits || (value >= limits[0] && value <= limits[1]);
  };
  /** Shows the model's choices. Keeps a value that the visitor has changed, if the model offers it. @param {HTMLElement} field */
  const showControl = field => {
    const name = nameOf(field);
    const control = controls[name];
    const part = inputOf(field);
    const before = readField(field);
    const isKept = name in usual && before !== usual[name] && isOffered(control, before);
    if (part instanceof HTMLSelectElement)
      part.replaceChildren(...(control.choices ?? []).map(([text, value]) => new Option(text, value)));
    if (part instanceof HTMLInputElement && control.limits)
      Object.assign(part, { min: control.limits[0], max: control.limits[1], step: control.limits[2] });
    fillField(field, isKept ? before : control.value);
    usual[name] = control.value;
  };
  /** Returns whether a list lost its choices, because another language was shown. @param {HTMLElement} field */
  const isEmpty = field => inputOf(field) instanceof HTMLSelectElement && !find('option', field);
  /** Shows the settings that a model uses in a mode. @param {Controls} next @param {string} mode */
  const show = (next, mode) => {
    const all = findAll('[data-setting]', element);
    if (all[0] !== fields[0]) [fields, usual, controls] = [all, {}, {}];
    const isOther = next !== controls;
    controls = next;
    for (const field of fields) {
      const control = controls[nameOf(field)];
      if (control && (isOther || isEmpty(field))) showControl(field);
      const isUsed = control ? !control.modes || control.modes.includes(mode) : nameOf(field) === 'seed';
      field.dataset.used = String(isUsed);
    }
    showGuidedSteps();
  };
  /** With guided first steps, the server computes which steps have guidance, so the view does not show the interval. */
  const showGuidedSteps = () => {
    const isComputed = Number(value('guided_steps') ?? 0) > 0;
    for (const field of fields) {
      const isInterval = ['guidance_start', 'guidance_end'].includes(nameOf(field));
      field.hidden = field.dataset.used === 'false' || (isInterval && isComputed);
    }
  };
  /** Returns the value of a setting, undefined if it is not shown. @param {string} name @returns {any} */
  const value = name => {
    const field = fields.find(one => nameOf(one) === name);
    return field && field.dataset.used === 'true' ? readField(field) : undefined;
  };
  /** Returns the values of all settings that are shown. @returns {Record<string, any>} */
  const read = () => Object.fromEntries(fields.filter(field => !field.hidden).map(field => [nameOf(field), readField(field)]));
  /** Fills settings of an earlier video or preset. @param {Record<string, any>} values */
  const fill = values => {
    for (const field of fields) if (nameOf(field) in values) fillField(field, values[nameOf(field)]);
    showGuidedSteps();
  };

  on(element, 'input', target => {
    if (!target.closest('[data-setting="guided_steps"]')) return;
    const isOn = Number(value('guided_steps') ?? 0) > 0;
    const guidance = isOn ? controls.guided_steps?.guidance : 1;
    if (!isOn || Math.max(value('guidance') ?? 1, value('guidance_low') ?? 1) <= 1) fill({ guidance, guidance_low: guidance });
    showGuidedSteps();
  });
  /** @type {OwnPreset[]} */
  let own = [];
  const showOwnPresets = async () => {
    own = (await send('/presets'))?.presets ?? [];
    const rows = own.map(({ name }, place) => {
      const button = Object.assign(document.createElement('button'), { type: 'button', textContent: name });
      button.dataset.own = String(place);
      const row = document.createElement('li');
      row.append(button);
      return row;
    });
    const list = find('.own ul', element);
    list?.replaceChildren(...rows);
  };
  on(
    element,
    'toggle',
    target => {
      if (target instanceof HTMLDetailsElement && target.matches('.own') && target.open) showOwnPresets();
    },
    true,
  );
  on(element, 'click', target => {
    if (!(target instanceof HTMLElement) || !target.dataset.own) return;
    loadOwnPreset(own[Number(target.dataset.own)]);
    const menu = target.closest('details');
    if (menu) menu.open = false;
  });

  return { fill, read, show, value };
};
