// Values that were typed since a preset was chosen. A late answer to that choice must not overwrite them with the preset's values.
// Gradio reports an input later than the browser's event, so the script reads the field. See `handlers.py`.
import { act } from '../components/actions.js';
import { onFirst } from '../components/dom.js';
import { requestDraft } from './instant.js';

/** Values by the control's name. @type {Map<string, unknown>} */
const typed = new Map();
/** Controls whose field was read before Gradio reported the input. @type {Set<string>} */
const readFirst = new Set();
/** The last chosen preset. @type {string | undefined} */
let preset;

export const startTyped = () =>
  onFirst(document, 'input', 'textarea, input[type=number]', (/** @type {Field} */ field) => {
    const name = field.closest('.block[id]')?.id.replaceAll('-', '_');
    if (!name || field.value === '') return;
    readFirst.add(name);
    typed.set(name, field.type === 'number' ? Number(field.value) : field.value);
  });

/** Functions that the form's Gradio events call. */
export const form = {
  /** Stores the value of a changed control. @param {string} name @param {unknown} value */
  noteTyped: (name, value) => {
    if (!readFirst.delete(name)) typed.set(name, value);
  },
  forgetTyped: () => typed.clear(),
  requestDraft,
  /** Returns the typed values of these controls, undefined for other controls. Gradio ignores undefined. @param {string[]} names */
  typedValues: names => names.map(name => typed.get(name)),
  /** Returns the typed value, else `value`. @param {string} name @param {unknown} value */
  typedOr: (name, value) => typed.get(name) ?? value,

  /** Runs when the list of presets opens. @param {string} name */
  presetLookedAt: name => {
    preset = name;
  },
  /** Runs when a preset is selected in the list, even if it is the current preset. */
  presetSelected: () => {
    preset = undefined;
  },
  /** Runs for each report of a chosen preset. Gradio reports the same choice several times. @param {string} name */
  presetChosen: name => {
    if (name === preset) return;
    preset = name;
    typed.clear();
    act('choose', 'preset');
  },
};
