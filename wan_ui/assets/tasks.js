// Progress of long tasks that this visitor started, such as exports and projects, with a Stop button. After a press that starts a
// task, the server is polled once per second until no task remains.
import { find, findAll, on } from '../components/dom.js';
import { showToast } from '../components/toast.js';

const EVERY_MILLISECONDS = 1000;
const STARTERS = 'a[data-task], [data-watch-tasks], #generate, [data-shot]';
const EMPTY_ROUNDS = 3; // polls without a task before polling stops; a task starts a moment after the press
let emptyRounds = 0;
let timer = 0;

/** @typedef {{id: string, text: string, percent: number | null}} Task */

const tasksBox = () => {
  const page = find('.gradio-container') ?? document.body; // rules of the style sheet apply only inside it
  const found = find('#tasks') ?? page.appendChild(Object.assign(document.createElement('div'), { id: 'tasks' }));
  found.setAttribute('role', 'status');
  return found;
};

/** @param {Task} task @param {string} stop The button's text. */
const taskRow = ({ id, text, percent }, stop) => {
  const row = document.createElement('p');
  const words = Object.assign(document.createElement('span'), { textContent: text });
  const bar = document.createElement('div');
  bar.className = 'bar';
  bar.role = 'progressbar';
  bar.ariaLabel = text;
  if (percent === null) bar.dataset.waiting = 'true';
  else bar.ariaValueNow = String(percent);
  const filled = bar.appendChild(document.createElement('i'));
  filled.style.width = `${percent ?? 0}%`;
  const button = Object.assign(document.createElement('button'), { type: 'button', textContent: stop });
  button.dataset.stopTask = id;
  row.append(words, bar, button);
  return row;
};

const pollTasks = async () => {
  timer = 0;
  try {
    const { tasks, stop } = await (await fetch('studio/tasks')).json();
    tasksBox().replaceChildren(...tasks.map((/** @type {Task} */ task) => taskRow(task, stop)));
    emptyRounds = tasks.length ? 0 : emptyRounds + 1;
  } catch {
    emptyRounds += 1; // another part of the page reports a lost connection
  }
  if (emptyRounds < EMPTY_ROUNDS) timer = setTimeout(pollTasks, EVERY_MILLISECONDS);
};

const watchTasks = () => {
  emptyRounds = 0;
  if (!timer) timer = setTimeout(pollTasks, EVERY_MILLISECONDS / 4);
};

/** Opens a download link in a hidden frame, so that an error response can be read and shown.
 * @param {HTMLAnchorElement} link */
const openInFrame = link => {
  const frame = Object.assign(document.createElement('iframe'), { hidden: true, src: link.href });
  frame.addEventListener('load', () => {
    const text = frame.contentDocument?.body?.textContent?.trim();
    if (text) showToast(text);
    frame.remove();
  });
  document.body.append(frame);
};

export const startTasks = () => {
  on(document, 'click', (target, event) => {
    const stopped = findAll('[data-stop-task]').find(button => button.contains(target))?.dataset.stopTask;
    if (stopped) {
      fetch(`studio/tasks/${stopped}/stop`, { method: 'POST' }).then(watchTasks);
      return;
    }
    const starter = target.closest(STARTERS);
    if (!starter) return;
    watchTasks();
    const isOpened = event.ctrlKey || event.metaKey || event.shiftKey;
    if (!(starter instanceof HTMLAnchorElement) || !starter.matches('a[data-task]') || isOpened) return;
    event.preventDefault();
    openInFrame(starter);
  });
  on(document, 'change', target => {
    if (target.id === 'project-file') watchTasks();
  });
};
