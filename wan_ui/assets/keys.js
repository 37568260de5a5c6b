// Keyboard shortcuts. Text fields keep all keys except Ctrl+Enter and Escape.
import { playTogether, stepTogether, toggleAudio } from '../compare/compare.js';
import { act } from '../components/actions.js';
import { find, isShown, on } from '../components/dom.js';
import { openView, showHelp, toggleQueue, views } from '../components/views.js';
import { toggleInstant } from '../form/instant.js';
import { CARD, moveInLibrary } from '../library/library.js';
import { stepStage, toggleStage } from '../stage/player.js';
import { toggleSound } from '../stage/sound.js';
import { closeMenus, MAKES } from './buttons.js';

const TEXT_FIELDS = 'textarea, select, [contenteditable], input:not([type=range]):not([type=checkbox])';

/** Presses a button if it is shown and enabled. @param {string} selector */
const press = selector => {
  const button = find(selector);
  if (!(button instanceof HTMLButtonElement) || !isShown(button) || button.disabled) return false;
  button.click();
  return true;
};

/** @param {Element} target @param {KeyboardEvent} event */
const plainKey = (target, event) => {
  const { key } = event;
  /** @type {HTMLElement | null} */
  const card = target.closest(CARD);
  const job = card?.dataset.job;
  const isComparing = isShown(find('.compare'));
  if (key === '?') showHelp();
  else if (isShown(find('#library-grid')) && /^Arrow/.test(key) && !target.matches('input[type=range]')) {
    event.preventDefault();
    moveInLibrary(card, key);
  } else if (card && key === 's') press(`#library-grid li[data-job="${job}"] [data-act="queue:star"]`);
  else if (card && key === 'c') act('compare', 'add', { job });
  else if (card && key === 'Delete') act('queue', 'delete', { job });
  else if (key === ',' || key === '.') (isComparing ? stepTogether : stepStage)(key === ',' ? -1 : 1);
  else if (key === 'm') toggleSound();
  else if (/^[1-4]$/.test(key) && isComparing) toggleAudio(Number(key));
  else if (key === ' ' && !target.closest('button, a, summary, video, input')) {
    event.preventDefault();
    isComparing ? playTogether() : toggleStage();
  }
};

export const startKeys = () =>
  on(document, 'keydown', '*', (target, event) => {
    const { key, altKey } = event;
    const isCtrl = event.ctrlKey || event.metaKey;
    const isCtrlEnter = key === 'Enter' && isCtrl;
    const view = altKey && /^[1-9]$/.test(key) && views()[Number(key) - 1];
    if (event.repeat && (isCtrlEnter || (key === 'Enter' && target.closest(MAKES)))) {
      event.preventDefault(); // repeated events of a pressed key count as one press
    } else if (isCtrlEnter) {
      if (press('.view-column.shown button.primary') || press('#generate')) event.preventDefault();
    } else if (key === 'Escape') {
      if (!closeMenus() && !find('dialog[open], :popover-open') && press('#stop')) event.preventDefault();
    } else if (view) {
      event.preventDefault();
      openView(view);
    } else if (altKey && key.toLowerCase() === 'q') {
      event.preventDefault();
      toggleQueue();
    } else if (altKey && key.toLowerCase() === 'i') {
      if (toggleInstant()) event.preventDefault();
    } else if (!target.closest(TEXT_FIELDS) && !isCtrl && !altKey) plainKey(target, event);
  });
