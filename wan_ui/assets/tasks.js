// Progress of long tasks that this visitor started, such as exports and projects, with a Stop button. After a press that starts a
// task, the server is polled once per second until no task remains.
import { create, find, findAll, get, on, showText } from '../components/dom.js';
import { showToast } from '../components/toast.js';

const EVERY_MILLISECONDS = 1000;
const STARTERS = 'a[data-task], [data-watch-tasks], #generate, [data-shot]';
const EMPTY_ROUNDS = 3; // polls without a task before polling stops; a task starts a moment after the press
let emptyRounds = 0;
let timer = 0;

/** Shows one row for each task. Rows stay in the page while their task runs, so that a press or the focus is not lost.
 * @param {HTMLElement} box @param {{id: string, text: string, percent: number | null}[]} tasks @param {string} stop The button's text. */
const showRows = (box, tasks, stop) => {
  const rows = new Map(findAll('p', box).map(row => [row.dataset.task, row]));
  for (const { id, text, percent } of tasks) {
    const row =
      rows.get(id) ??
      create(
        'p',
        { dataset: { task: id } },
        create('span', {}),
        create('div', { className: 'bar', role: 'progressbar' }, create('i', {})),
        create('button', { type: 'button', textContent: stop, dataset: { stopTask: id } }),
      );
    const [words, bar] = /** @type {HTMLElement[]} */ ([...row.children]);
    showText(words, text);
    bar.ariaLabel = text;
    bar.ariaValueNow = percent === null ? null : String(percent);
    bar.dataset.waiting = String(percent === null);
    get('i', HTMLElement, bar).style.width = `${percent ?? 0}%`;
    if (!rows.delete(id)) box.append(row);
  }
  for (const row of rows.values()) row.remove();
};

const pollTasks = async () => {
  timer = 0;
  try {
    const { tasks, stop } = await (await fetch('studio/tasks')).json();
    const page = find('.gradio-container') ?? document.body; // rules of the style sheet apply only inside it
    const box = find('#tasks') ?? page.appendChild(create('div', { id: 'tasks', role: 'status' }));
    showRows(box, tasks, stop);
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

export const startTasks = () => {
  on(document, 'click', '[data-stop-task]', ({ dataset }) =>
    fetch(`studio/tasks/${dataset.stopTask}/stop`, { method: 'POST' }).then(watchTasks),
  );
  on(document, 'click', STARTERS, (starter, event) => {
    watchTasks();
    const isOpened = event.ctrlKey || event.metaKey || event.shiftKey;
    if (!(starter instanceof HTMLAnchorElement) || !starter.matches('[data-task]') || isOpened) return;
    event.preventDefault();
    // A hidden frame opens the download link, so that an error response can be read and shown.
    const frame = create('iframe', { hidden: true, src: starter.href });
    frame.addEventListener('load', () => {
      const text = frame.contentDocument?.body?.textContent?.trim();
      if (text) showToast(text);
      frame.remove();
    });
    document.body.append(frame);
  });
  on(document, 'change', '#project-file', watchTasks);
};
