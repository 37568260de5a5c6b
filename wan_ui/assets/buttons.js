// The buttons of all panels. The listeners are on the document, because panels are rendered again.
import { act, importProject } from '../components/actions.js';
import { fieldValue, filesOf, find, findAll, on } from '../components/dom.js';
import { copyFrom, showToast } from '../components/toast.js';
import { openView, showHelp, toggleQueue } from '../components/views.js';

/** Buttons that queue a video. Each press counts, also while the server answers the previous press. */
export const MAKES = '#generate, [data-shot=alone]';

const openMenus = () => /** @type {HTMLDetailsElement[]} */ (findAll('details:is(.popover, .menu)[open]'));

/** Closes all open menus except the menu that contains `inside`. Returns whether a menu was open. @param {Element} [inside] */
export const closeMenus = inside => {
  const open = openMenus();
  for (const menu of open) if (!inside || !menu.contains(inside)) menu.open = false;
  return open.length > 0;
};

/** @param {Element} target @param {string} selector @returns {HTMLElement | null} */
const closest = (target, selector) => target.closest(selector);

/** @param {Element} target @param {MouseEvent} event */
const press = (target, event) => {
  closeMenus(target);
  const view = closest(target, 'button[data-view]')?.dataset.view;
  if (view) return openView(view);
  if (target.closest('#queue-toggle')) return toggleQueue();
  if (target.closest('#help-toggle')) return showHelp();
  const copying = closest(target, '[data-copy-text]');
  if (copying) return void copyFrom(copying);
  const button = closest(target, '[data-act]');
  if (!button) return;
  const [group, what] = (button.dataset.act ?? '').split(':');
  const { job = '', value = '' } = button.dataset;
  if (what === 'star') button.dataset.on = button.dataset.on === 'true' ? 'false' : 'true';
  if (group === 'choose' && what === 'choose' && event.detail === 0) button.focus();
  const menu = button.closest('details.popover');
  if (menu instanceof HTMLDetailsElement && ['prompt', 'load', 'link', 'use'].includes(what)) menu.open = false;
  const field = { own: '#own-name', project: '#project-name' }[group]; // the text field with a name, next to the button
  const typed = field && find(field);
  act(group, what, { job: field ? (typed ? fieldValue(typed) : '') : job, value });
};

export const startButtons = () => {
  on(document, 'click', press);
  // A double click counts as one press.
  on(
    document,
    'click',
    (target, event) => {
      if (event.detail > 1 && target.closest(MAKES)) event.stopImmediatePropagation();
    },
    true,
  );
  on(document, 'change', target => {
    const field = closest(target, '[data-change]');
    if (!field) return;
    const [group, what] = (field.dataset.change ?? '').split(':');
    act(group, what, { job: field.dataset.job, value: fieldValue(field) });
  });
  on(document, 'change', target => {
    if (target.id !== 'project-file') return;
    const large = /** @type {HTMLElement} */ (target).dataset.large ?? '';
    const [file] = filesOf(target);
    if (file) importProject(file).catch(() => showToast(large));
  });
};
