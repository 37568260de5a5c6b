// Instant mode: requests a draft half a second after the last change of the form, and shows the newest draft over the stage. See
// `wan_ui/form/instant.py`. The server answers each request once; a newer request ends an older request.
import { act } from '../components/actions.js';
import { find, findVideo, on } from '../components/dom.js';
import { openedView } from '../components/views.js';
import { createDraftOrder } from './draft_order.js';

const REST_MILLISECONDS = 500; // from the last key to the request
const AGAIN_MILLISECONDS = 2000; // until a draft is requested again that could not run
const LOST_MILLISECONDS = 30000; // without an answer for this time the draft is requested again
const STORED = 'studio-instant';

/** @typedef {{number: number, prompt: string, seed: number, picture: string, isWaiting: boolean}} Answer */

const order = createDraftOrder();
let timer = 0;

const switchInput = () => /** @type {HTMLInputElement | null} */ (find('#instant input'));
const isOn = () => switchInput()?.checked ?? false;
const isStageBusy = () => find('.stage')?.dataset.active === 'true';
const draftView = () => find('#draft .draft');

/** Requests a draft after `milliseconds`, unless another change follows. @param {number} milliseconds */
const requestLater = milliseconds => {
  clearTimeout(timer);
  timer = setTimeout(request, milliseconds);
};

const request = () => {
  if (!isOn()) return;
  // A hidden tab requests its draft when it is shown. While this page's video is generated, the stage shows that video.
  if (document.hidden || isStageBusy()) return;
  act('instant', 'draft', { value: String(order.next()) });
  requestLater(LOST_MILLISECONDS);
};

/** Runs for each change of the form that Gradio reports. */
export const requestDraft = () => {
  if (!isOn() || isStageBusy()) return;
  order.markChanged();
  requestLater(REST_MILLISECONDS);
};

/** Hides the draft. Answers to earlier requests are ignored. */
export const hideDraft = () => {
  clearTimeout(timer);
  order.ignoreEarlier();
  const view = draftView();
  if (view) view.hidden = true;
};

/** Shows the draft of an answer, once the browser has decoded the image. @param {Answer} answer */
const showDraft = async ({ number, prompt, seed, picture }) => {
  const image = new Image();
  image.src = `data:image/webp;base64,${picture}`;
  await image.decode();
  const view = draftView();
  if (!view || !order.mayShow(number)) return;
  const screen = find('.screen', view);
  screen?.style.setProperty('--ratio', String(image.width / image.height));
  image.alt = prompt;
  screen?.replaceChildren(image);
  const detail = find('.detail', view);
  if (detail) detail.textContent = detail.title = prompt;
  Object.assign(view.dataset, { number, prompt, seed });
  view.hidden = false;
  findVideo('.stage video')?.pause();
};

/** @param {GradioComponent} component */
export const startInstant = ({ element, watch }) => {
  watch('value', () => {
    const text = find('[data-answer]', element)?.dataset.answer;
    if (!text) return;
    /** @type {Answer} */
    const answer = JSON.parse(text);
    if (order.isNewest(answer.number)) {
      clearTimeout(timer);
      if (answer.isWaiting) requestLater(AGAIN_MILLISECONDS);
      else order.markAnswered(answer.number);
    }
    if (answer.picture) showDraft(answer);
  });
};

/** Turns Instant on if it was on when the page was last open, and listens to the switch, the keys and the tab. */
export const openInstant = () => {
  on(document, 'change', target => {
    if (target !== switchInput()) return;
    localStorage.setItem(STORED, String(isOn()));
    if (isOn()) return void request();
    hideDraft();
    act('instant', 'stop');
  });
  on(document, 'click', target => {
    if (target.closest('[data-draft-hide]')) hideDraft();
  });
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden && order.isUnanswered()) requestLater(REST_MILLISECONDS);
  });
  if (localStorage.getItem(STORED) === 'true' && !isOn()) switchInput()?.click();
};

/** Turns Instant on or off, in the view that has the switch. Returns false without a switch. */
export const toggleInstant = () => {
  const field = openedView() === 'create' ? switchInput() : null;
  field?.click();
  return field !== null;
};
