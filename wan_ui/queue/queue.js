// The queue: an item that is dragged onto another item takes the place of that item.
import { act } from '../components/actions.js';
import { find, on } from '../components/dom.js';

const ITEM = '#queue li[draggable]';

/** @param {Element} target @returns {HTMLElement | null} */
const itemOf = target => target.closest(ITEM);

export const startQueue = () => {
  let dragged = '';
  on(document, 'dragstart', (target, event) => {
    const item = itemOf(target);
    dragged = item?.dataset.job ?? '';
    if (item) event.dataTransfer?.setData('text/plain', '');
  });
  on(document, 'dragover', (target, event) => {
    if (dragged && itemOf(target)) event.preventDefault();
  });
  on(document, 'drop', (target, event) => {
    const item = itemOf(target);
    if (!dragged || !item) return;
    event.preventDefault();
    if (item.dataset.job !== dragged) act('queue', 'move', { job: dragged, value: item.dataset.job });
    dragged = '';
  });
};

/** Shows the number of queued videos at the queue's button. Runs in every tick of `studio.js`. */
export const showCount = () => {
  const count = find('.queue')?.dataset.count ?? '0';
  const badge = find('#queue-toggle .badge');
  if (!badge || badge.textContent === count) return;
  badge.textContent = count;
  badge.hidden = count === '0';
};
