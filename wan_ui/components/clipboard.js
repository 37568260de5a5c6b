// Copies text. Browsers offer `navigator.clipboard` only on https and on localhost. Elsewhere the script selects and copies the text.
import { create, find } from './dom.js';

/** Copies a text to the clipboard. Returns whether it succeeded. @param {string} text */
export const copyText = async text => {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // The text is selected and copied below.
  }
  const field = create('textarea', { value: text, readOnly: true });
  const focused = document.activeElement;
  field.style.cssText = 'position: fixed; top: 0; opacity: 0';
  (find('dialog[open]') ?? document.body).append(field); // elements outside an open dialog cannot be selected
  field.select();
  try {
    return document.execCommand('copy');
  } catch {
    return false;
  } finally {
    field.remove();
    if (focused instanceof HTMLElement) focused.focus({ preventScroll: true });
  }
};
