// Instant mode: requests a draft half a second after the last change of the form, and shows the newest draft over the stage. See
// `wan_ui/form/instant.py`. The server answers each request once; a newer request ends an older request.
import { act } from '../components/actions.js';
import { create, find, findVideo, get, on } from '../components/dom.js';
import { openedView } from '../components/views.js';
import { createDraftOrder } from './draft_order.js';

const REST_MILLISECONDS = 500; // from the last key to the request
const AGAIN_MILLISECONDS = 2000; // until a draft is requested again that could not run
const LOST_MILLISECONDS = 30000; // without an answer for this time the draft is requested again
const STORED = 'studio-instant';

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
  // A hidden tab requests its draft when it is shown. While this page's video is generated, the stage shows that video.
  if (!isOn() || document.hidden || isStageBusy()) return;
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
  draftView()?.toggleAttribute('hidden', true);
};

export const startInstant = (/** @type {GradioComponent} */ { element, watch }) => {
  watch('value', async () => {
    const text = find('[data-answer]', element)?.dataset.answer;
    if (!text) return;
    /** @type {{number: number, prompt: string, seed: number, picture: string, isWaiting: boolean}} */
    const { number, prompt, seed, picture, isWaiting } = JSON.parse(text);
    if (order.isNewest(number)) {
      clearTimeout(timer);
      if (isWaiting) requestLater(AGAIN_MILLISECONDS);
      else order.markAnswered(number);
    }
    if (!picture) return;
    const image = create('img', { src: `data:image/webp;base64,${picture}`, alt: prompt });
    await image.decode();
    const view = draftView();
    if (!view || !order.mayShow(number)) return;
    const screen = get('.screen', HTMLElement, view);
    screen.style.setProperty('--ratio', String(image.width / image.height));
    screen.replaceChildren(image);
    Object.assign(get('.detail', HTMLElement, view), { textContent: prompt, title: prompt });
    Object.assign(view.dataset, { number, prompt, seed });
    view.hidden = false;
    findVideo('.stage video')?.pause();
  });
};

/** Turns Instant on if it was on when the page was last open, and listens to the switch, the keys and the tab. */
export const openInstant = () => {
  on(document, 'change', '#instant input', () => {
    localStorage.setItem(STORED, String(isOn()));
    if (isOn()) return request();
    hideDraft();
    act('instant', 'stop');
  });
  on(document, 'click', '[data-draft-hide]', hideDraft);
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
