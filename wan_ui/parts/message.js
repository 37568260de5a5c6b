// The line at the bottom of the page that says what has just happened. See `wan_ui/parts/message.py`.
import { copyText } from './clipboard.js';
import { find, findAll, get, input, on } from './dom.js';
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

/** Says something that the server did not send. @param {string} text */
export const say = text => {
  const line = find('#message .message');
  if (!line) return;
  (find('span', line) ?? line).textContent = text;
  showFor(line, SAID_MILLISECONDS);
};

/** Copies a button's text and says so, or shows the text selected and says how to copy it. @param {HTMLElement} button */
export const copyFrom = async button => {
  const { copyText: text = '', said = '', unsaid = '' } = button.dataset;
  const isCopied = await copyText(text);
  say(isCopied ? said : unsaid);
  if (!isCopied) showSelected(text);
};

/** Shows a text in the line, selected, so that it can be copied by hand. @param {string} text */
const showSelected = text => {
  const line = find('#message .message');
  if (!line) return;
  const field = findAll('input', line).find(one => one instanceof HTMLInputElement) ?? document.createElement('input');
  if (!(field instanceof HTMLInputElement)) return;
  Object.assign(field, { readOnly: true, value: text });
  if (!field.isConnected) find('span', line)?.after(field);
  clearTimeout(timer);
  field.focus();
  field.select();
};

/** @param {GradioComponent} component */
export const startMessage = ({ element, watch }) => {
  watch('value', () => {
    const line = find('.message', element);
    if (!line?.dataset.nonce) return;
    const { view, copy } = line.dataset;
    if (view) openView(view);
    const column = view && document.getElementById(`${view}-column`); // on a phone it may be below the stage
    if (column && column.getBoundingClientRect().top > innerHeight / 2) column.scrollIntoView({ behavior: 'smooth' });
    clearTimeout(timer);
    line.classList.remove('shown');
    if (get('span', HTMLElement, line).textContent.trim()) showFor(line, SHOWN_MILLISECONDS);
    if (copy) copyLink(line, location.origin + location.pathname + copy);
  });
  on(element, 'click', target => {
    if (target.closest('[data-act], .close')) find('.message', element)?.classList.remove('shown');
  });
};

/** @param {HTMLElement} line @param {string} link */
const copyLink = async (line, link) => {
  const field = input('input', line);
  field.value = link;
  if (await copyText(link)) return;
  clearTimeout(timer); // the line stays until the link is copied by hand
  get('span', HTMLElement, line).textContent = line.dataset.uncopied ?? '';
  field.focus();
  field.select();
};

/** Brings an error below a control into view. @param {GradioComponent} component */
export const startNote = ({ element, watch }) => {
  watch('value', () => find('.note:not([hidden])', element)?.scrollIntoView({ block: 'center', behavior: 'smooth' }));
};
