// Reports finished videos: in the window's title, and by browser notifications. The page asks for permission once, after the first
// long video. It reads the queue that the server sends, which includes videos of other tabs.
import { act } from '../components/actions.js';
import { find, findAll, on } from '../components/dom.js';

const LONG_MILLISECONDS = 30000;
const ASKED = 'studio-notice-asked';
let plainTitle = ''; // Gradio sets the title after the modules have run
/** The time at which each running video was first seen, by job. @type {Map<string, number>} */
const watched = new Map();
let endedWord = '';

const showTitle = (/** @type {string} */ words) => {
  plainTitle ||= document.title;
  document.title = words ? `${words} · ${plainTitle}` : plainTitle;
};

export const readQueueNews = (/** @type {string} */ html) => {
  const now = Date.now();
  /** The progress of the first running video. @type {number | undefined} */
  let percent;
  for (const item of findAll('li[data-job]', new DOMParser().parseFromString(html, 'text/html'))) {
    const { job = '', state } = item.dataset;
    if (state === 'running') {
      percent ??= parseInt(find('.bar i', item)?.style.width ?? '', 10);
      if (!watched.has(job)) watched.set(job, now);
    }
    if (state !== 'finished' && state !== 'failed') continue;
    const started = watched.get(job);
    watched.delete(job);
    if (started !== undefined) report(job, state, find('b', item)?.textContent ?? '', now - started);
  }
  showTitle(endedWord || (percent && percent > 0 ? `${percent} %` : ''));
};

/** @param {string} job @param {'finished' | 'failed'} state @param {string} prompt @param {number} milliseconds */
const report = (job, state, prompt, milliseconds) => {
  const question = find('#notice');
  if (!question) return;
  const { done = '', failed = '' } = question.dataset;
  const words = state === 'finished' ? done : failed;
  if (document.hidden) endedWord = words;
  if (milliseconds < LONG_MILLISECONDS || !('Notification' in window)) return;
  if (Notification.permission === 'granted') {
    if (!document.hidden) return;
    const notice = new Notification(words, { body: prompt, tag: job, icon: 'favicon.ico' });
    notice.onclick = () => {
      window.focus();
      act('show', 'show', { job });
      notice.close();
    };
  } else if (Notification.permission === 'default' && !localStorage.getItem(ASKED)) {
    localStorage.setItem(ASKED, 'true');
    question.hidden = false;
  }
};

export const startNotice = () => {
  document.addEventListener('visibilitychange', () => {
    if (document.hidden) return;
    endedWord = '';
    showTitle('');
  });
  on(document, 'click', '#notice [data-notice]', ({ dataset }) => {
    find('#notice')?.toggleAttribute('hidden', true);
    if (dataset.notice === 'yes') Notification.requestPermission();
  });
};
