// Before Gradio's own scripts. Its clock of the page's loading asks for frames for as long as the page is open, though nobody sees it
// (6.31, `StatusTracker`): the browser then draws the page sixty times a second even if nothing on it changes. Once the page is
// there, such clocks stop; the studio shows none.
const askForFrame = window.requestAnimationFrame.bind(window);
const isClock = callback => /performance\.now\(\)-.*\/1e3/.test(callback);
window.requestAnimationFrame = callback => window.studioView && isClock(callback) ? 0 : askForFrame(callback);
