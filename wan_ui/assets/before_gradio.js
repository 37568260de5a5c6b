// Runs before Gradio's own scripts.

// Gradio's clock of the page's loading asks for animation frames for as long as the page is open, though nobody sees the clock (6.31,
// `StatusTracker`): the browser then draws the page sixty times a second even if nothing on it changes. Once the page is complete,
// such clocks stop; the studio shows none.
const askForFrame = window.requestAnimationFrame.bind(window);
/** @param {FrameRequestCallback} callback */
const isClock = callback => /performance\.now\(\)-.*\/1e3/.test(String(callback));
window.requestAnimationFrame = callback => (window.studio?.isOpen && isClock(callback) ? 0 : askForFrame(callback));

// Gradio shows its labels in the browser's language (6.31, `getLocaleFromNavigator`). A language that was chosen in the header, which
// `language.js` keeps in this cookie, takes its place.
const language = /(?:^|; )studio_language=(\w+)/.exec(document.cookie)?.[1];
// Gradio has its own texts in zh-CN only, and takes English if it has none.
const locale = language === 'zh' ? 'zh-CN' : language;
if (locale) Object.defineProperty(navigator, 'language', { get: () => locale });
