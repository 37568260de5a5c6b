// Exports, films, comparisons and projects that this visitor has begun: their progress, and Stop. The server is asked once a second
// from the press that begins one until it has none left.

const TASKS_MILLISECONDS = 1000;
const TASK_STARTERS = 'a[data-task], [data-watch-tasks], #generate, [data-shot]';
const ROUNDS_WITHOUT = 3;  // looks that find nothing, after which no more follow: a press takes a moment to begin its work
let emptyRounds = 0, tasksTimer = null;
const tasksBox = () => {
  const page = $('.gradio-container') ?? document.body;  // Gradio puts its own selector before each rule of the style sheet
  const box = $('#tasks') ?? page.appendChild(Object.assign(document.createElement('div'), {id: 'tasks'}));
  box.setAttribute('role', 'status');
  return box;
};
const taskRow = ({id, text, percent}, stop) => {
  const row = document.createElement('p'), words = document.createElement('span'), bar = document.createElement('progress');
  const button = document.createElement('button');
  words.textContent = text;
  if (percent !== null) bar.value = percent / 100;
  bar.setAttribute('aria-label', text);
  Object.assign(button, {type: 'button', textContent: stop});
  button.dataset.stopTask = id;
  row.append(words, bar, button);
  return row;
};
const lookAtTasks = async () => {
  tasksTimer = null;
  try {
    const answer = await fetch('studio/tasks'), {tasks, stop} = await answer.json();
    tasksBox().replaceChildren(...tasks.map(task => taskRow(task, stop)));
    emptyRounds = tasks.length ? 0 : emptyRounds + 1;
  } catch {
    emptyRounds += 1;  // the page says elsewhere that the server is gone
  }
  if (emptyRounds < ROUNDS_WITHOUT) tasksTimer = setTimeout(lookAtTasks, TASKS_MILLISECONDS);
};
const watchTasks = () => {
  emptyRounds = 0;
  tasksTimer ??= setTimeout(lookAtTasks, TASKS_MILLISECONDS / 4);
};
// A link to a file that is made first opens in a hidden frame: the file is downloaded, and a refusal can be read and shown.
const frameFor = link => {
  const frame = Object.assign(document.createElement('iframe'), {hidden: true, src: link.href});
  frame.addEventListener('load', () => {
    const text = frame.contentDocument?.body?.textContent.trim();
    if (!text) return;  // a download: without its frame it would end
    say(text);
    frame.remove();
  });
  document.body.append(frame);
};
document.addEventListener('click', event => {
  if (event.target.closest('[data-stop-task]')) {
    fetch(`studio/tasks/${event.target.closest('[data-stop-task]').dataset.stopTask}/stop`, {method: 'POST'}).then(watchTasks);
    return;
  }
  const starter = event.target.closest(TASK_STARTERS);
  if (!starter) return;
  watchTasks();
  if (!starter.matches('a[data-task]') || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  frameFor(starter);
});
document.addEventListener('change', event => { if (event.target.id === 'project-file') watchTasks(); });
