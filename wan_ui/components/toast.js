// The line at the bottom of the page that reports what has just happened. See `wan_ui/components/toast.py`.
import { copyText } from './clipboard.js';
import { find, get, input, on } from './dom.js';
import { openView } from './views.js';

const SAID_MILLISECONDS = 4000;
const SHOWN_MILLISECONDS = 9000;
let timer = 0;

/** @param {HTMLElement} line @param {number} milliseconds */
const showFor = (line, milliseconds) => {
  clearTimeout(timer);
  line.classList.add('shown');
  timer = setTimeout(() => line.classList.remove('shown'), milliseconds);
};

/** Shows a message of a script. @param {string} text */
export const showToast = text => {
  const line = find('#message .message');
  if (!line) return;
  (find('span', line) ?? line).textContent = text;
  showFor(line, SAID_MILLISECONDS);
};

/**
 * Copies a text. If the browser refuses, shows and selects the text, so that the visitor can copy it. Returns whether the
 * browser copied it.
 * @param {string} text @param {string} byHand The shown instruction to copy the text.
 */
const copyOrSelect = async (text, byHand) => {
  if (await copyText(text)) return true;
  const line = find('#message .message');
  if (!line) return false;
  clearTimeout(timer); // the line stays until the text is copied
  line.classList.add('shown');
  (find('span', line) ?? line).textContent = byHand;
  const field = line.querySelector('input') ?? line.appendChild(document.createElement('textarea'));
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

/** @param {GradioComponent} component */
export const startMessage = ({ element, watch }) => {
  watch('value', () => {
    const line = find('.message', element);
    if (!line?.dataset.nonce) return;
    const { view, copy } = line.dataset;
    if (view) openView(view);
    const column = view && document.getElementById(`${view}-column`); // on a phone the column may be below the stage
    if (column && column.getBoundingClientRect().top > innerHeight / 2) column.scrollIntoView({ behavior: 'smooth' });
    clearTimeout(timer);
    line.classList.remove('shown');
    if (get('span', HTMLElement, line).textContent.trim()) showFor(line, SHOWN_MILLISECONDS);
    if (!copy) return;
    const link = location.origin + location.pathname + copy;
    input('input', line).value = link;
    copyOrSelect(link, line.dataset.byHand ?? '');
  });
  on(element, 'click', target => {
    if (target.closest('[data-act], .close')) find('.message', element)?.classList.remove('shown');
  });
};

/** Scrolls to an error below a control. @param {GradioComponent} component */
export const startNote = ({ element, watch }) => {
  watch('value', () => find('.note:not([hidden])', element)?.scrollIntoView({ block: 'center', behavior: 'smooth' }));
};
