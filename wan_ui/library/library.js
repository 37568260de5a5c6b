// The library: the video under the pointer or with the keyboard's focus plays. The arrow keys move between the cards.
import { find, findAll, findVideo, input, keepMenuOpen, on, onFirst, play } from '../components/dom.js';
import { clamp } from '../components/text.js';

export const CARD = '#library-grid li';

/** Moves the focus to another card. @param {HTMLElement | null} card @param {string} key An arrow key. */
export const moveInLibrary = (card, key) => {
  const cards = findAll(CARD);
  if (!cards.length) return;
  const columns = cards.filter(other => other.offsetTop === cards[0].offsetTop).length;
  const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key] ?? 0;
  const next = cards[clamp((card ? cards.indexOf(card) : -1) + by, 0, cards.length - 1)];
  find('.card', next)?.focus();
  next.scrollIntoView({ block: 'nearest' });
};

const playCard = (/** @type {HTMLElement} */ card) => {
  const video = findVideo('video', card);
  if (!video || video.getAttribute('src')) return;
  video.src = video.dataset.src ?? '';
  play(video);
};

/** Stops a card that the pointer or the focus leaves. @param {HTMLElement} card @param {PointerEvent | FocusEvent} event */
const stopCard = (card, { relatedTarget: next }) => {
  if (next instanceof Node && card.contains(next)) return;
  const video = findVideo('video', card);
  video?.removeAttribute('src');
  video?.load();
};

export const startLibrary = () => {
  on(document, 'pointerover', CARD, playCard);
  on(document, 'focusin', CARD, playCard);
  on(document, 'pointerout', CARD, stopCard);
  on(document, 'focusout', CARD, stopCard);
};

/** Keeps the menu of projects open, with its typed text, when the menu is rendered again. @param {GradioComponent} component */
export const startProjects = component => {
  const { element } = component;
  let typed = '';
  let isTyping = false;
  let top = 0;
  onFirst(element, 'scroll', '*', ({ scrollTop }) => {
    if (find('details[open]', element)) top = scrollTop;
  });
  on(element, 'input', '#project-name', (/** @type {HTMLInputElement} */ { value }) => {
    typed = value;
  });
  on(element, 'focusin', '*', ({ id }) => {
    isTyping = id === 'project-name';
  });
  on(element, 'click', '[data-act="project:create"], [data-act="project:rename"]', () => {
    typed = '';
  });
  keepMenuOpen(component, () => {
    const name = input('#project-name', element);
    name.value = typed;
    if (isTyping) name.focus();
    find('details > div', element)?.scrollTo({ top });
  });
};
