// The "?" of Gradio's components, which opens the description of a setting. `descriptions.py` renders the same elements for other
// views. The browser closes the description on Escape, or when something else is pressed.
import { create, find, findAll } from './dom.js';

/** Adds the "?" to components of the class `described`. Gradio draws a component again whenever it becomes visible. */
export const startDescriptions = () => {
  const addDescriptions = () => {
    for (const block of findAll('.described:has(.info-text):not(:has(> .about))')) {
      const label = find('[data-testid="block-info"], .label-text', block)?.textContent?.trim();
      const textContent = find('.info-text', block)?.textContent;
      const panel = create('div', { className: 'description', popover: 'auto', textContent });
      const about = { className: 'about', textContent: '?', ariaLabel: `${label} ?`, popoverTargetElement: panel };
      block.append(create('button', { type: 'button', ...about }), panel);
    }
  };
  addDescriptions();
  const controls = find('#controls');
  if (controls) new MutationObserver(addDescriptions).observe(controls, { childList: true, subtree: true });
};
