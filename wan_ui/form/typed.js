// What was typed in the form since a preset was chosen. The answer to that choice may come later, and must not bring the preset's
// own value back. Gradio reports an input a moment later than the field, so the field itself is read first. See `handlers.py`.
import { act } from '../components/actions.js';
import { on } from '../components/dom.js';

/** Values by the control's name. @type {Map<string, unknown>} */
const typed = new Map();
/** Controls whose field was read before Gradio reported it. @type {Set<string>} */
const readFirst = new Set();
/** The preset that was chosen last. @type {string | undefined} */
let preset;

export const startTyped = () =>
  on(
    document,
    'input',
    target => {
      const name = target.closest('.block[id]')?.id.replaceAll('-', '_');
      const isNumber = target instanceof HTMLInputElement && target.type === 'number';
      if (!name || !(isNumber || target instanceof HTMLTextAreaElement) || target.value === '') return;
      readFirst.add(name);
      typed.set(name, isNumber ? Number(target.value) : target.value);
    },
    true,
  );

/** What the Gradio events of the form call. */
export const form = {
  /** A control was changed. @param {string} name @param {unknown} value */
  noteTyped: (name, value) => {
    if (!readFirst.delete(name)) typed.set(name, value);
  },
  forgetTyped: () => typed.clear(),
  /** The typed values of these controls; undefined, which Gradio ignores, for the others. @param {string[]} names */
  typedValues: names => names.map(name => typed.get(name)),
  /** The typed value, or this one. @param {string} name @param {unknown} value */
  typedOr: (name, value) => typed.get(name) ?? value,

  /** The list of presets was opened with this one chosen. @param {string} name */
  presetLookedAt: name => {
    preset = name;
  },
  /** A preset was selected; one that was chosen already can be chosen again. */
  presetSelected: () => {
    preset = undefined;
  },
  /** The preset changed. Gradio reports the same choice several times. @param {string} name */
  presetChosen: name => {
    if (name === preset) return;
    preset = name;
    typed.clear();
    act('choose', 'preset');
  },
};
