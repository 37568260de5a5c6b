// The server sends events: the changed parts of the page as HTML, and its count of changes. A view that was rendered at an older
// count is rendered again. One tab of a browser keeps the stream of events and forwards them to the other tabs.
import { act, canAct } from '../components/actions.js';
import { openedView } from '../components/views.js';
import { readQueueNews } from '../queue/notice.js';

const VIEW_MILLISECONDS = 1500; // the shortest time between two updates of a view
const AGAIN_MILLISECONDS = 5000;
const SILENT_MILLISECONDS = 40000; // without a message for this time the tab connects again; the server sends one every 15 s
const NAME = 'studio-changes';

/** Functions that show each part of the page, by element id. @type {Map<string, (html: string) => void>} */
const renderers = new Map();
/** The last reported HTML of each part. @type {Record<string, string>} */
const latest = {};
const tabs = new BroadcastChannel(NAME);
let stream = /** @type {EventSource | null} */ (null);
let count = /** @type {number | null} */ (null);
let drawnCount = count;
let drawnAt = 0;
let lastNews = 0;
let warm = /** @type {string | null} */ (null);

/** Returns the time at which a part was rendered (see `stamp_html` in `wan_ui/components/events.py`). @param {string} html */
const renderTime = html => Number(/^<!--(\d+)-->/.exec(html)?.[1] ?? 0);

/** Returns the start function of a part of the page that several responses update. HTML older than the shown HTML is ignored.
 * @param {string} name */
export const startPart =
  name =>
  /** @param {GradioComponent} component */
  ({ props, watch }) => {
    let newest = props.value;
    const setNewest = (/** @type {string} */ html) => {
      if (renderTime(html) >= renderTime(newest)) newest = html;
      if (props.value !== newest) props.value = newest;
    };
    const draw = (/** @type {string} */ html) => {
      setNewest(props.value);
      setNewest(html);
    };
    renderers.set(name, draw);
    if (latest[name]) draw(latest[name]);
    watch('value', () => setNewest(props.value));
  };

const applyNews = (/** @type {{count: number | null, parts: Record<string, string>}} */ news) => {
  count = news.count;
  recordContact();
  Object.assign(latest, news.parts);
  for (const [name, html] of Object.entries(news.parts)) renderers.get(name)?.(html);
  if (news.parts.queue) readQueueNews(news.parts.queue);
  if (!news.parts.warm) return;
  const before = warm;
  warm = news.parts.warm.replace(/^<!--.*?-->/, '');
  // The loaded models or compiled programs changed, so Generate needs a new estimate.
  if (before !== null && before !== warm) act('estimate', 'estimate');
};

const recordContact = () => {
  lastNews = performance.now();
};

const listen = () => {
  stream?.close();
  recordContact();
  tabs.postMessage('still'); // the other tabs must not connect meanwhile
  const source = new EventSource('studio/changes');
  stream = source;
  source.onmessage = event => {
    const news = JSON.parse(event.data);
    applyNews(news);
    tabs.postMessage(news);
  };
  source.addEventListener('still', () => {
    recordContact();
    tabs.postMessage('still');
  });
  // A browser reconnects after a broken connection, but not after a refused one, for example by a proxy whose server restarts.
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) lastNews = -Infinity;
  };
};

const listenAlone = (/** @type {LockOptions} */ options) => {
  if (!navigator.locks) return listen(); // browsers have no locks on plain http
  navigator.locks
    .request(NAME, options, () => new Promise(listen))
    .catch(() => {
      stream?.close(); // another tab listens now
      stream = null;
    });
};

/** Requests an update of the open view if its content may have changed. Runs in every tick of `studio.js`. @param {number} now */
export const drawView = now => {
  if (count === drawnCount || now - drawnAt < VIEW_MILLISECONDS || document.hidden || !canAct()) return;
  if (openedView() === 'create') return; // the job's own stream updates its stage
  drawnCount = count;
  drawnAt = now;
  act('tick', 'tick');
};

export const startChanges = () => {
  recordContact();
  tabs.addEventListener('message', ({ data }) => {
    if (data === 'all') {
      if (stream) tabs.postMessage({ count, parts: latest });
    } else if (data === 'still') recordContact();
    else applyNews(data);
  });
  listenAlone({});
  // A browser does not notice a lost network, and no tab is notified when the tab with the stream is closed. Therefore a tab that
  // receives no message, not even "still", connects again. If another tab had the stream, this tab takes the stream over.
  setInterval(() => {
    if (performance.now() - lastNews > SILENT_MILLISECONDS) stream ? listen() : listenAlone({ steal: true });
  }, AGAIN_MILLISECONDS);
  tabs.postMessage('all');
};
