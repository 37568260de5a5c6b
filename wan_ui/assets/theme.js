// Light or dark theme. The browser stores the visitor's choice. The default is the browser's own setting.
import { on } from '../components/dom.js';

const KEY = 'studio-theme';

export const startTheme = (/** @type {GradioComponent} */ { element }) => {
  const { classList } = document.body;
  const kept = localStorage.getItem(KEY);
  if (kept) classList.toggle('dark', kept === 'dark');
  on(element, 'click', '#theme-toggle', () => localStorage.setItem(KEY, classList.toggle('dark') ? 'dark' : 'light'));
};
