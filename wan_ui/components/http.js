// Helpers for views whose scripts call the server: texts, the error note, requests and uploads.
import { find, get } from './dom.js';

/** Returns the address of an uploaded file or of a video's file. @param {string} path A path on the server, or an address. */
export const addressOf = path =>
  path.startsWith('/studio/media/') ? path.slice(1) : `gradio_api/file=${path.split('/').map(encodeURIComponent).join('/')}`;

/**
 * Creates the helpers of a view. `name` is the view's CSS class, and its addresses start with `studio/` and `name`.
 * @param {HTMLElement} element @param {string} name
 */
export const createViewClient = (element, name) => {
  /** Returns the view's texts, which the server wrote into the page. @returns {Record<string, string>} */
  const words = () => JSON.parse(find(`.${name}`, element)?.dataset.words ?? '{}');

  /** Shows an error. An empty text hides the note. @param {string} text */
  const note = text => {
    const shown = find(`.${name} > .note`, element);
    if (!shown) return;
    shown.textContent = text;
    shown.hidden = !text;
  };

  /** @param {string} path @param {object} [body] */
  const post = (path, body = {}) =>
    fetch(`studio/${name}${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });

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
    const form = new FormData();
    form.append('files', file);
    try {
      const answer = await fetch('gradio_api/upload', { method: 'POST', body: form });
      if (answer.ok) return (await answer.json())[0];
      note((await answer.text()) || words().unreachable);
    } catch {
      note(words().unreachable);
    }
    return null;
  };

  return {
    element,
    words,
    note,
    post,
    send,
    upload,
    /** @param {string} selector */
    one: selector => get(selector, HTMLElement, element),
    /** @param {string} selector */
    input: selector => get(selector, HTMLInputElement, element),
    /** @param {string} selector */
    select: selector => get(selector, HTMLSelectElement, element),
    /** @param {string} selector */
    button: selector => get(selector, HTMLButtonElement, element),
    /** @param {string} selector */
    canvas: selector => get(selector, HTMLCanvasElement, element),
    /** @param {string} selector */
    video: selector => get(selector, HTMLVideoElement, element),
    /** @param {string} selector */
    image: selector => get(selector, HTMLImageElement, element),
  };
};
/** @typedef {ReturnType<typeof createViewClient>} ViewClient */
