// Light or dark theme. The browser stores the visitor's choice. The default is the browser's own setting.
import { on } from '../components/dom.js';

const KEY = 'studio-theme';

/** @param {string} theme */
const show = theme => document.body.classList.toggle('dark', theme === 'dark');

/** @param {GradioComponent} component */
export const startTheme = ({ element }) => {
  const kept = localStorage.getItem(KEY);
  if (kept) show(kept);
  on(element, 'click', target => {
    if (!target.closest('#theme-toggle')) return;
    const theme = document.body.classList.contains('dark') ? 'light' : 'dark';
    localStorage.setItem(KEY, theme);
    show(theme);
  });
};
