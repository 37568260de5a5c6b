// Files that are dropped on the page or pasted. Upload fields handle files that are dropped on them. A view can handle other files.
import { sendFile } from '../components/actions.js';
import { find, findAll, isShown } from '../components/dom.js';

const OWN_FIELDS = '#input-image, #last-image, .takes-files';
let fileTarget = /** @type {{view: string, take: (file: File) => void} | null} */ (null);

/** Passes files to `take` while the view is shown. @param {string} view A selector. @param {(file: File) => void} take */
export const takeFiles = (view, take) => {
  fileTarget = { view, take };
};

/** Returns the view that handles files now. */
const shownTarget = () => (fileTarget && isShown(find(fileTarget.view)) ? fileTarget : null);

/** Passes the first image or video on. @param {DataTransfer | null} data */
const takeMedia = data => {
  const file = [...(data?.files ?? [])].find(
    ({ type, name }) => /^(image|video)\//.test(type) || /\.(mp4|m4v|mov|webm)$/i.test(name),
  );
  if (!file) return;
  const target = shownTarget();
  if (target) target.take(file);
  else sendFile('drop', 'drop', file);
};

/** Returns whether files are dragged, but not over a field that handles them itself. @param {DragEvent} event */
const isForPage = ({ dataTransfer, target }) =>
  dataTransfer?.types.includes('Files') && !(target instanceof Element && target.closest(OWN_FIELDS));

const showZone = (/** @type {boolean} */ isHidden) => {
  const zone = find('#drop-zone');
  if (!zone) return;
  zone.hidden = isHidden;
  for (const words of findAll('p', zone)) words.hidden = words.matches('.clip') !== (shownTarget() !== null);
};

export const startFiles = () => {
  addEventListener('dragover', event => {
    if (!isForPage(event)) return showZone(true);
    event.preventDefault();
    showZone(false);
  });
  addEventListener('dragleave', event => {
    if (!event.relatedTarget) showZone(true);
  });
  addEventListener('drop', event => {
    showZone(true);
    if (!isForPage(event)) return;
    event.preventDefault();
    takeMedia(event.dataTransfer);
  });
  document.addEventListener('paste', event => takeMedia(event.clipboardData));
};
