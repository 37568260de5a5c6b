// The server reports what has changed: parts of the page as they look now, and a count by which a view that may show something old
// is drawn again. One tab of a browser keeps the stream and passes everything to the others.
import { act, canAct } from '../components/actions.js';
import { openedView } from '../components/views.js';
import { readQueueNews } from '../queue/notice.js';

const VIEW_MILLISECONDS = 1500; // at least, between two drawings of a view
const AGAIN_MILLISECONDS = 5000;
const SILENT_MILLISECONDS = 40000; // the server sends something every 15 s
const NAME = 'studio-changes';

/** @typedef {{count: number | null, parts: Record<string, string>}} News */

/** Draws each part of the page, by element id. @type {Map<string, (html: string) => void>} */
const drawers = new Map();
/** The parts as they were reported last. @type {Record<string, string>} */
const latest = {};
const tabs = new BroadcastChannel(NAME);
/** @type {EventSource | null} */
let stream = null;
/** @type {number | null} */
let count = null;
/** @type {number | null} */
let drawnCount = null;
let drawnAt = 0;
let lastNews = 0;
/** @type {string | null} */
let warm = null;

/** The moment at which a part was drawn: see `stamp_html` in `wan_ui/components/events.py`. @param {string} html */
const momentOf = html => Number(/^<!--(\d+)-->/.exec(html)?.[1] ?? 0);

/** A part of the page that several answers draw. A drawing that is older than the shown one is not shown. @param {string} name */
export const startPart =
  name =>
  /** @param {GradioComponent} component */
  ({ props, watch }) => {
    let newest = props.value;
    /** @param {string} html */
    const take = html => {
      if (momentOf(html) >= momentOf(newest)) newest = html;
      if (props.value !== newest) props.value = newest;
    };
    /** @param {string} html */
    const draw = html => {
      take(props.value);
      take(html);
    };
    drawers.set(name, draw);
    if (latest[name]) draw(latest[name]);
    watch('value', () => take(props.value));
  };

/** @param {News} news */
const take = news => {
  count = news.count;
  lastNews = performance.now();
  Object.assign(latest, news.parts);
  for (const [name, html] of Object.entries(news.parts)) drawers.get(name)?.(html);
  if (news.parts.queue) readQueueNews(news.parts.queue);
  if (news.parts.warm) showWarm(news.parts.warm);
};

/** What is loaded and compiled has changed: then the estimate at Generate is another one. @param {string} html */
const showWarm = html => {
  const word = html.replace(/^<!--.*?-->/, '');
  if (warm !== null && warm !== word && canAct()) act('estimate', 'estimate');
  warm = word;
};

const nothingNew = () => {
  lastNews = performance.now();
};

const listen = () => {
  stream?.close();
  nothingNew();
  tabs.postMessage('still'); // the other tabs wait meanwhile
  const source = new EventSource('studio/changes');
  stream = source;
  source.onmessage = event => {
    const news = JSON.parse(event.data);
    take(news);
    tabs.postMessage(news);
  };
  source.addEventListener('still', () => {
    nothingNew();
    tabs.postMessage('still');
  });
  // A browser connects again if the connection breaks, but not if it is refused, as by a proxy whose server restarts.
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) lastNews = -Infinity;
  };
};

/** Another tab listens now. */
const stopListening = () => {
  stream?.close();
  stream = null;
};

/** @param {LockOptions} options */
const listenAlone = options => {
  if (!navigator.locks) return listen(); // on plain http there are no locks
  navigator.locks.request(NAME, options, () => new Promise(listen)).catch(stopListening);
};

/** Draws the open view again if something in it may have changed. Runs in every tick. @param {number} now */
export const drawView = now => {
  if (count === drawnCount || now - drawnAt < VIEW_MILLISECONDS || document.hidden || !canAct()) return;
  if (openedView() === 'create') return; // its stage is drawn by the job's own stream
  drawnCount = count;
  drawnAt = now;
  act('tick', 'tick');
};

export const startChanges = () => {
  lastNews = performance.now();
  tabs.addEventListener('message', ({ data }) => {
    if (data === 'all') {
      if (stream) tabs.postMessage({ count, parts: latest });
    } else if (data === 'still') nothingNew();
    else take(data);
  });
  listenAlone({});
  // A browser does not notice that a network has gone, or the tab that listens. A tab that gets no news, not even that nothing
  // has changed, connects again, itself if need be.
  setInterval(() => {
    if (performance.now() - lastNews > SILENT_MILLISECONDS) stream ? listen() : listenAlone({ steal: true });
  }, AGAIN_MILLISECONDS);
  tabs.postMessage('all');
};
