// The menu of the page's language. A cookie stores the language, so that the server can render the page in it.
import { on } from '../components/dom.js';

const YEAR_SECONDS = 365 * 24 * 3600;

export const startLanguage = () =>
  on(document, 'change', '#language', (/** @type {Field} */ { value }) => {
    // biome-ignore lint/suspicious/noDocumentCookie: not every browser has the Cookie Store API, and none on plain http
    document.cookie = `studio_language=${value}; path=/; max-age=${YEAR_SECONDS}; samesite=lax`;
    location.reload();
  });
