// Parts of the form in HTML: example images, the tooltip of the image, the menu of the visitor's presets, the batch.
import { act } from '../components/actions.js';
import { filesOf, find, get, on } from '../components/dom.js';

const LONGEST_TABLE = 200_000; // characters
const LONGEST_PRESETS = 320_000; // characters; `wan_ui/gateway/body_limit.py` allows this

/** @param {GradioComponent} component @param {readonly string[]} events */
export const startPictureExamples = ({ element, trigger }, [choose]) =>
  on(element, 'click', target => {
    const button = /** @type {HTMLElement | null} */ (target.closest('[data-index]'));
    if (button) trigger(choose, { index: Number(button.dataset.index) });
  });

export const startPanel = () => {
  on(document, 'click', target => {
    const button = target.closest('.batch-toggle');
    if (!button) return;
    const isOpen = get('#batch', HTMLElement).classList.toggle('shown');
    button.setAttribute('aria-expanded', String(isOpen));
    if (isOpen) get('#batch-table textarea', HTMLTextAreaElement).focus();
  });
  // Gradio draws the uploaded image, in which a click moves the crop. The preview of the crop has the tooltip's text.
  on(document, 'pointerover', target => {
    const hint = target.matches('#input-image img') && find('#crop-preview [data-hint]')?.dataset.hint;
    if (hint) target.setAttribute('title', hint);
  });
  on(document, 'change', async target => {
    const [group, what, most] =
      target.id === 'batch-file' ? ['batch', 'file', LONGEST_TABLE] : ['own', 'import', LONGEST_PRESETS];
    if (!['batch-file', 'own-file'].includes(target.id)) return;
    const [file] = filesOf(target);
    if (file) act(String(group), String(what), { value: (await file.text()).slice(0, Number(most)) });
  });
};
