// The buttons of all panels. The listeners are on the document, because panels are rendered again.
import { act, sendFile } from '../components/actions.js';
import { find, findAll, on, onFiles, onFirst } from '../components/dom.js';
import { copyFrom, showToast } from '../components/toast.js';
import { openView, showHelp, toggleQueue } from '../components/views.js';

/** Buttons that queue a video. Each press counts, also while the server answers the previous press. */
export const MAKES = '#generate, [data-shot=alone]';
/** The text field with a name next to the buttons of a group. @type {Record<string, string>} */
const NAME_FIELDS = { own: '#own-name', project: '#project-name' };

/** Closes all open menus except the menu that contains `inside`. Returns whether a menu was open. @param {Element} [inside] */
export const closeMenus = inside => {
  const open = findAll('details:is(.popover, .menu)[open]');
  for (const menu of open) menu.toggleAttribute('open', menu.contains(inside ?? null));
  return open.length > 0;
};

/** @param {HTMLElement} button @param {MouseEvent} event */
const press = (button, event) => {
  const [group, what] = (button.dataset.act ?? '').split(':');
  const { job, value = '' } = button.dataset;
  if (what === 'star') button.dataset.on = String(button.dataset.on !== 'true');
  if (group === 'choose' && what === 'choose' && event.detail === 0) button.focus();
  if (['prompt', 'load', 'link', 'use'].includes(what)) button.closest('details.popover')?.removeAttribute('open');
  const field = NAME_FIELDS[group];
  const name = field ? /** @type {Field | null} */ (find(field))?.value : job;
  act(group, what, { job: name ?? '', value });
};

export const startButtons = () => {
  on(document, 'click', '*', closeMenus);
  on(document, 'click', 'button[data-view]', ({ dataset }) => openView(dataset.view ?? ''));
  on(document, 'click', '#queue-toggle', toggleQueue);
  on(document, 'click', '#help-toggle', showHelp);
  on(document, 'click', '[data-copy-text]', copyFrom);
  on(document, 'click', '[data-act]', press);
  onFirst(document, 'click', MAKES, (_, event) => {
    if (event.detail > 1) event.stopImmediatePropagation(); // a double click counts as one press
  });
  on(document, 'change', '[data-change]', (/** @type {Field} */ { dataset, value }) => {
    const [group, what] = (dataset.change ?? '').split(':');
    act(group, what, { job: dataset.job, value });
  });
  onFiles(document, '#project-file', ([file], { dataset }) =>
    sendFile('project', 'import', file).catch(() => showToast(dataset.large ?? '')),
  );
};
