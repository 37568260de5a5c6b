// Runs before Gradio's own scripts.

// Gradio's invisible clock of the page's loading time requests animation frames as long as the page is open (6.31, `StatusTracker`).
// The browser would therefore draw an unchanged page sixty times per second. Such clocks are stopped when the page is complete.
const requestFrame = window.requestAnimationFrame.bind(window);
const isClock = (/** @type {FrameRequestCallback} */ callback) => /performance\.now\(\)-.*\/1e3/.test(String(callback));
window.requestAnimationFrame = callback => (window.studio?.isOpen && isClock(callback) ? 0 : requestFrame(callback));

// Gradio shows its labels in the browser's language (6.31, `getLocaleFromNavigator`). The language of the header's menu, which
// `language.js` stores in this cookie, replaces it.
const language = /(?:^|; )studio_language=(\w+)/.exec(document.cookie)?.[1];
// Gradio's Chinese texts are named zh-CN. For the name zh, Gradio would show English.
const locale = language === 'zh' ? 'zh-CN' : language;
if (locale) Object.defineProperty(navigator, 'language', { get: () => locale });
