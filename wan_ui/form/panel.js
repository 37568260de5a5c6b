// Parts of the form in HTML: example images, the tooltip of the image, the menu of the visitor's presets, the batch.
import { act } from '../components/actions.js';
import { find, get, on, onFiles } from '../components/dom.js';

const LONGEST_TABLE = 200_000; // characters
const LONGEST_PRESETS = 320_000; // characters; `wan_ui/gateway/body_limit.py` allows this

/** @param {GradioComponent} component @param {readonly string[]} events */
export const startPictureExamples = ({ element, trigger }, [choose]) =>
  on(element, 'click', '[data-index]', ({ dataset }) => trigger(choose, { index: Number(dataset.index) }));

export const startPanel = () => {
  on(document, 'click', '.batch-toggle', button => {
    const isOpen = get('#batch', HTMLElement).classList.toggle('shown');
    button.setAttribute('aria-expanded', String(isOpen));
    if (isOpen) get('#batch-table textarea', HTMLTextAreaElement).focus();
  });
  // Gradio draws the uploaded image, in which a click moves the crop. The preview of the crop has the tooltip's text.
  on(document, 'pointerover', '#input-image img', image => {
    const hint = find('#crop-preview [data-hint]')?.dataset.hint;
    if (hint) image.title = hint;
  });
  onFiles(document, '#batch-file', async ([file]) =>
    act('batch', 'file', { value: (await file.text()).slice(0, LONGEST_TABLE) }),
  );
  onFiles(document, '#own-file', async ([file]) =>
    act('own', 'import', { value: (await file.text()).slice(0, LONGEST_PRESETS) }),
  );
};
