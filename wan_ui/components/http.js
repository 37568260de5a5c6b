// Helpers for views whose scripts call the server: texts, the error note, requests and uploads.
import { find, get } from './dom.js';

const JSON_HEADERS = { 'content-type': 'application/json' };

/** Returns the address of an uploaded file or of a video's file. @param {string} path A path on the server, or an address. */
export const addressOf = path =>
  path.startsWith('/studio/media/') ? path.slice(1) : `gradio_api/file=${path.split('/').map(encodeURIComponent).join('/')}`;

const parsed = new WeakMap();
/** Returns the value of an element's data attribute with JSON, parsed once. @param {HTMLElement} element @param {string} name */
export const parsedData = (element, name) => {
  if (!parsed.has(element)) parsed.set(element, JSON.parse(element.dataset[name] ?? 'null'));
  return parsed.get(element);
};

/** Creates the helpers of a view. `name` is the view's CSS class, and its addresses start with `studio/` and `name`.
 * @param {HTMLElement} element @param {string} name */
export const createViewClient = (element, name) => {
  /** Returns the view's texts, which the server wrote into the page. @returns {Record<string, string>} */
  const words = () => JSON.parse(find(`.${name}`, element)?.dataset.words ?? '{}');

  /** Shows an error. An empty text hides the note. @param {string} text */
  const note = text => {
    const shown = find(`.${name} > .note`, element);
    if (shown) Object.assign(shown, { textContent: text, hidden: !text });
  };

  /** @param {string} path @param {object} [body] */
  const post = (path, body = {}) =>
    fetch(`studio/${name}${path}`, { method: 'POST', headers: JSON_HEADERS, body: JSON.stringify(body) });

  /** Returns the server's answer. After a failure, shows the error and returns null. @param {string} path @param {object} [body] */
  const send = async (path, body) => {
    try {
      const answer = await post(path, body);
      const given = await answer.json();
      note(given.error ?? '');
      return answer.ok && !given.error ? given : null;
    } catch {
      note(words().unreachable);
      return null;
    }
  };

  /** Uploads a file. Returns its path on the server, null after a failure. @param {File} file @returns {Promise<string | null>} */
  const upload = async file => {
    const body = new FormData();
    body.append('files', file);
    try {
      const answer = await fetch('gradio_api/upload', { method: 'POST', body });
      if (answer.ok) return (await answer.json())[0];
      note((await answer.text()) || words().unreachable);
    } catch {
      note(words().unreachable);
    }
    return null;
  };

  /** @template {Element} T @param {new () => T} kind @returns {(selector: string) => T} */
  const finder = kind => selector => get(selector, kind, element);

  return {
    element,
    words,
    note,
    post,
    send,
    upload,
    one: finder(HTMLElement),
    input: finder(HTMLInputElement),
    select: finder(HTMLSelectElement),
    button: finder(HTMLButtonElement),
    canvas: finder(HTMLCanvasElement),
    video: finder(HTMLVideoElement),
    image: finder(HTMLImageElement),
  };
};
