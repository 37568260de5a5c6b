// Files that are dropped on the page or pasted. Upload fields handle files that are dropped on them. A view can handle other files.
import { dropFile } from '../components/actions.js';
import { find, findAll, isShown, on } from '../components/dom.js';

const OWN_FIELDS = '#input-image, #last-image, .takes-files';
/** @type {{view: string, take: (file: File) => void} | null} */
let fileTarget = null;

/** Passes files to `take` while the view is shown. @param {string} view A selector. @param {(file: File) => void} take */
export const takeFiles = (view, take) => {
  fileTarget = { view, take };
};

const hasFileTarget = () => fileTarget !== null && isShown(find(fileTarget.view));

/** @param {File} file */
const take = file => (fileTarget && hasFileTarget() ? fileTarget.take(file) : dropFile(file));

/** @param {DragEvent} event */
const hasFiles = event => [...(event.dataTransfer?.types ?? [])].includes('Files');

/** @param {File} file */
const isMedia = file => /^(image|video)\//.test(file.type) || /\.(mp4|m4v|mov|webm)$/i.test(file.name);

/** @param {boolean} isHidden */
const showZone = isHidden => {
  const zone = find('#drop-zone');
  if (!zone) return;
  zone.hidden = isHidden;
  for (const words of findAll('p', zone)) words.hidden = words.matches('.clip') !== hasFileTarget();
};

/** @param {EventTarget | null} target */
const hasOwnField = target => target instanceof Element && target.closest(OWN_FIELDS) !== null;

export const startFiles = () => {
  addEventListener('dragover', event => {
    if (!hasFiles(event) || hasOwnField(event.target)) return showZone(true);
    event.preventDefault();
    showZone(false);
  });
  addEventListener('dragleave', event => {
    if (!event.relatedTarget) showZone(true);
  });
  addEventListener('drop', event => {
    showZone(true);
    if (!hasFiles(event) || hasOwnField(event.target)) return;
    const file = [...(event.dataTransfer?.files ?? [])].find(isMedia);
    event.preventDefault();
    if (file) take(file);
  });
  on(document, 'paste', (_, event) => {
    const file = [...(event.clipboardData?.files ?? [])].find(isMedia);
    if (file) take(file);
  });
};
