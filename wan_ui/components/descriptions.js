// The "?" of Gradio's components, which opens the description of a setting. `descriptions.py` renders the same elements for other
// views. The browser closes the description on Escape, or when something else is pressed.
import { find, findAll } from './dom.js';

/** @param {HTMLElement} block */
const addDescription = block => {
  const label = find('[data-testid="block-info"], .label-text', block)?.textContent?.trim();
  const panel = document.createElement('div');
  Object.assign(panel, { className: 'description', popover: 'auto', textContent: find('.info-text', block)?.textContent });
  const button = Object.assign(document.createElement('button'), { type: 'button', className: 'about', textContent: '?' });
  button.ariaLabel = `${label} ?`;
  button.popoverTargetElement = panel;
  block.append(button, panel);
};

/** Adds the "?" to components of the class `described`. Gradio draws a component again whenever it becomes visible. */
export const startDescriptions = () => {
  const addDescriptions = () => findAll('.described:has(.info-text):not(:has(> .about))').forEach(addDescription);
  addDescriptions();
  const controls = find('#controls');
  if (controls) new MutationObserver(addDescriptions).observe(controls, { childList: true, subtree: true });
};
