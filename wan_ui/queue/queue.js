// The queue: an item that is dragged onto another item takes the place of that item. A touch drags an item at its number; elsewhere
// it scrolls.
import { act } from '../components/actions.js';
import { capture, find, findAll, get, on, onRelease } from '../components/dom.js';

const ITEM = '#queue li[data-state="queued"]';
const DRAG_PIXELS = 6; // a shorter movement is a click

/** @param {Element | null} target @returns {HTMLElement | null} */
const itemOf = target => target?.closest(ITEM) ?? null;

export const startQueue = () => {
  // The server may render the items again during a drag. Therefore this has ids, and the panel receives the pointer's events.
  /** @type {{job: string, y: number, target: string} | null} */
  let drag = null;
  const show = () => {
    for (const { dataset } of findAll(ITEM))
      dataset.drag = !drag?.target ? '' : dataset.job === drag.job ? 'from' : dataset.job === drag.target ? 'to' : '';
  };
  on(document, 'pointerdown', '*', (target, event) => {
    const item = itemOf(target);
    const isHandle = event.pointerType !== 'touch' || target.closest('.thumb') !== null;
    drag = item && isHandle && event.button === 0 ? { job: item.dataset.job ?? '', y: event.clientY, target: '' } : null;
  });
  on(document, 'pointermove', '*', (_, event) => {
    if (!drag || (!drag.target && Math.abs(event.clientY - drag.y) < DRAG_PIXELS)) return;
    if (!drag.target) capture(get('#queue', HTMLElement), event);
    const item = itemOf(document.elementFromPoint(event.clientX, event.clientY));
    drag.target = item?.dataset.job ?? drag.job;
    for (const near of [item?.previousElementSibling, item?.nextElementSibling]) near?.scrollIntoView({ block: 'nearest' });
    show();
  });
  onRelease(document, (_, { type }) => {
    const ended = drag;
    drag = null;
    if (!ended?.target) return;
    show();
    if (type === 'pointerup' && ended.target !== ended.job) act('queue', 'move', { job: ended.job, value: ended.target });
  });
};

/** Shows the number of queued videos at the queue's button. Runs in every tick of `studio.js`. */
export const showCount = () => {
  const count = find('.queue')?.dataset.count ?? '0';
  const badge = find('#queue-toggle .badge');
  if (badge && badge.textContent !== count) Object.assign(badge, { textContent: count, hidden: count === '0' });
};
