// What the views have in common that talk to the server themselves: their words, their note, requests and uploads.
import { find, get } from './dom.js';

/** The address of an uploaded file or of a video's file. @param {string} path Its path on the server, or its address there. */
export const addressOf = path =>
  path.startsWith('/studio/media/') ? path.slice(1) : `gradio_api/file=${path.split('/').map(encodeURIComponent).join('/')}`;

/**
 * A view's part of the page: its class and the start of its addresses are `name`.
 * @param {HTMLElement} element @param {string} name
 */
export const createViewClient = (element, name) => {
  /** The view's texts, as the server wrote them into the page. @returns {Record<string, string>} */
  const words = () => JSON.parse(find(`.${name}`, element)?.dataset.words ?? '{}');

  /** Shows why something was not done, or nothing. @param {string} text */
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

  /** Returns what the server answers; null if it refuses, and the note says why. @param {string} path @param {object} [body] */
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

  /** Uploads a file. Returns its path on the server; null if that failed. @param {File} file @returns {Promise<string | null>} */
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
