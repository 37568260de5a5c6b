// Word when a video is done: in the window's title, and by the browser's own notification, for which the page asks once, after the
// first video that took long. Reads the queue as the server tells it (studio.js), so it knows of videos that other tabs began.

const LONG_MILLISECONDS = 30000;
const ASKED = 'studio-notice-asked';
const plainTitle = document.title;
const watched = new Map();  // when each running video was first seen, by job
let endedWord = '';
const parsed = html => new DOMParser().parseFromString(html, 'text/html');
const titled = words => { document.title = words ? `${words} · ${plainTitle}` : plainTitle; };

// What the queue says of a job: its state, its prompt and, while it runs, its share in per cent.
const readQueue = html => [...parsed(html).querySelectorAll('li[data-job]')].map(item => ({
  job: item.dataset.job,
  state: item.dataset.state,
  prompt: item.querySelector('b')?.textContent ?? '',
  percent: parseInt(item.querySelector('.bar i')?.style.width ?? '', 10),
}));
window.studioQueueNews = html => {
  const jobs = readQueue(html), now = Date.now(), running = jobs.find(one => one.state === 'running');
  for (const {job, state, prompt} of jobs) {
    if (state === 'running' && !watched.has(job)) watched.set(job, now);
    if (state !== 'finished' && state !== 'failed') continue;
    const begun = watched.get(job);
    watched.delete(job);
    if (begun !== undefined) hasEnded(job, state, prompt, now - begun);
  }
  titled(endedWord || (running && running.percent > 0 ? `${running.percent} %` : ''));
};
const hasEnded = (job, state, prompt, milliseconds) => {
  const words = $('#notice')?.dataset;
  if (!words) return;
  if (document.hidden) endedWord = state === 'finished' ? words.done : words.failed;
  if (milliseconds < LONG_MILLISECONDS || !('Notification' in window)) return;
  if (Notification.permission === 'granted') {
    if (!document.hidden) return;
    const notice = new Notification(state === 'finished' ? words.done : words.failed, {body: prompt, tag: job, icon: 'favicon.ico'});
    notice.onclick = () => { window.focus(); act('show', 'show', {job}); notice.close(); };
  } else if (Notification.permission === 'default' && !localStorage.getItem(ASKED)) {
    localStorage.setItem(ASKED, 'true');
    $('#notice').hidden = false;
  }
};
document.addEventListener('visibilitychange', () => {
  if (document.hidden) return;
  endedWord = '';
  titled('');
});
document.addEventListener('click', event => {
  const answer = event.target.closest('[data-notice]')?.dataset.notice;
  if (!answer) return;
  $('#notice').hidden = true;
  if (answer === 'yes') Notification.requestPermission();
});
