// The open view and the open queue. The header lists the views. A column has a class in-KEY for each view that shows it, and
// phone-KEY for each view that shows it on a phone. The open view and the queue's state are attributes of the body. Rules of the
// style sheet cannot match the body, because Gradio puts its own selector before each rule. Therefore this script also sets
// classes of the columns and an attribute of the workspace.
import { act } from './actions.js';
import { find, findAll, findVideo, isShown } from './dom.js';

export const views = () => findAll('#views [data-view]').map(button => button.dataset.view ?? '');
export const openedView = () => document.body.dataset.view ?? '';

const refreshView = (/** @type {string} */ view) => act(`look_${view}`, 'look');

/** Opens a view. `stage` opens a view with the stage, unless the stage is visible. @param {string} name */
export const openView = name => {
  const view = name !== 'stage' ? name : isShown(find('.stage')) ? openedView() : 'create';
  if (!views().includes(view)) return;
  document.body.dataset.view = view;
  showPlace();
  refreshView(view);
  if (!isShown(find('.stage'))) findVideo('.stage video')?.pause();
};

/** Shows the columns of the open view. Runs in every tick of `studio.js`, because the header can be rendered again. */
export const showPlace = () => {
  document.body.dataset.view ||= views()[0] ?? '';
  const { queue, view } = document.body.dataset;
  const workspace = find('#workspace');
  if (!view) return;
  if (workspace && workspace.dataset.queue !== queue) workspace.dataset.queue = queue;
  for (const { classList } of findAll('#workspace > .place')) {
    classList.toggle('shown', classList.contains(`in-${view}`));
    classList.toggle('shown-on-phone', classList.contains(`phone-${view}`));
  }
  if (find('#views [aria-current=true]')?.dataset.view === view) return;
  for (const button of findAll('#views button')) button.setAttribute('aria-current', String(button.dataset.view === view));
  find('#views [aria-current=true]')?.scrollIntoView({ block: 'nearest', inline: 'center' }); // a phone shows only some buttons
};

export const toggleQueue = () => {
  const queue = document.body.dataset.queue === 'open' ? 'closed' : 'open';
  document.body.dataset.queue = queue;
  localStorage.setItem('studio-queue', queue);
  showPlace();
};

export const showHelp = () => /** @type {HTMLDialogElement | null} */ (find('#help'))?.showModal();

/** Starts refreshing the open view every 4 seconds, and every second while an element of the view is busy. */
export const startViews = () => {
  document.body.dataset.queue = innerWidth < 1200 ? 'closed' : localStorage.getItem('studio-queue') || 'open';
  const refresh = () => {
    if (!document.hidden) refreshView(openedView());
  };
  setInterval(refresh, 4000);
  setInterval(() => isShown(find('[data-busy=true]')) && refresh(), 1000);
};
