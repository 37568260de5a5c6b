// The line at the bottom of the page that reports what has just happened. See `wan_ui/components/toast.py`.
import { copyText } from './clipboard.js';
import { create, find, get, input, on } from './dom.js';
import { openView } from './views.js';

const SAID_MILLISECONDS = 4000;
const SHOWN_MILLISECONDS = 9000;
let timer = 0;

/** @param {HTMLElement} line @param {number} milliseconds 0: until the next message. */
const showFor = (line, milliseconds) => {
  clearTimeout(timer);
  line.classList.add('shown');
  if (milliseconds) timer = setTimeout(() => line.classList.remove('shown'), milliseconds);
};

/** Shows a message of a script. Returns the line. @param {string} text @param {number} [milliseconds] */
export const showToast = (text, milliseconds = SAID_MILLISECONDS) => {
  const line = find('#message .message');
  if (!line) return null;
  (find('span', line) ?? line).textContent = text;
  showFor(line, milliseconds);
  return line;
};

/** Copies a text. If the browser refuses, shows and selects the text, so that the visitor can copy it. Returns whether the
 * browser copied it.
 * @param {string} text @param {string} byHand The shown instruction to copy the text. */
const copyOrSelect = async (text, byHand) => {
  if (await copyText(text)) return true;
  const line = showToast(byHand, 0);
  if (!line) return false;
  const field = line.querySelector('input') ?? line.appendChild(create('textarea', {}));
  Object.assign(field, { value: text, readOnly: true });
  field.focus();
  field.select();
  return false;
};

/** Copies a button's text and confirms it. @param {HTMLElement} button */
export const copyFrom = async button => {
  const { copyText: text = '', said = '', byHand = '' } = button.dataset;
  if (await copyOrSelect(text, byHand)) showToast(said);
};

export const startMessage = (/** @type {GradioComponent} */ { element, watch }) => {
  watch('value', () => {
    const line = find('.message', element);
    if (!line?.dataset.nonce) return;
    const { view, copy, byHand = '' } = line.dataset;
    if (view) openView(view);
    const column = view && document.getElementById(`${view}-column`); // on a phone the column may be below the stage
    if (column && column.getBoundingClientRect().top > innerHeight / 2) column.scrollIntoView({ behavior: 'smooth' });
    clearTimeout(timer);
    line.classList.remove('shown');
    if (get('span', HTMLElement, line).textContent.trim()) showFor(line, SHOWN_MILLISECONDS);
    if (!copy) return;
    const link = location.origin + location.pathname + copy;
    input('input', line).value = link;
    copyOrSelect(link, byHand);
  });
  on(element, 'click', '[data-act], .close', () => find('.message', element)?.classList.remove('shown'));
};

/** Scrolls to an error below a control. @param {GradioComponent} component */
export const startNote = ({ element, watch }) =>
  watch('value', () => find('.note:not([hidden])', element)?.scrollIntoView({ block: 'center', behavior: 'smooth' }));
