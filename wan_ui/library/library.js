// The library: the video under the pointer or with the keyboard's focus plays. The arrow keys move between the cards.
import { find, findAll, findVideo, keepMenuOpen, on, play } from '../components/dom.js';

const CARD = '#library-grid li';

/** @param {Element} target @returns {HTMLElement | null} */
export const cardOf = target => target.closest(CARD);

/** Moves the focus to another card. @param {HTMLElement | null} card @param {string} key An arrow key. */
export const moveInLibrary = (card, key) => {
  const cards = findAll(CARD);
  if (!cards.length) return;
  const columns = cards.filter(other => other.offsetTop === cards[0].offsetTop).length;
  const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key] ?? 0;
  const place = (card ? cards.indexOf(card) : -1) + by;
  const next = cards[Math.min(Math.max(place, 0), cards.length - 1)];
  find('.card', next)?.focus();
  next.scrollIntoView({ block: 'nearest' });
};

/** @param {Element} target */
const playCard = target => {
  const card = cardOf(target);
  const video = card && findVideo('video', card);
  if (!video || video.getAttribute('src')) return;
  video.src = video.dataset.src ?? '';
  play(video);
};

/** @param {Element} target @param {EventTarget | null} next The element that gets the pointer or the focus. */
const stopCard = (target, next) => {
  const card = cardOf(target);
  if (!card || (next instanceof Node && card.contains(next))) return;
  const video = findVideo('video', card);
  video?.removeAttribute('src');
  video?.load();
};

export const startLibrary = () => {
  on(document, 'pointerover', playCard);
  on(document, 'focusin', playCard);
  on(document, 'pointerout', (target, event) => stopCard(target, event.relatedTarget));
  on(document, 'focusout', (target, event) => stopCard(target, event.relatedTarget));
};

/** Keeps the menu of projects open, with its typed text, when the menu is rendered again. @param {GradioComponent} component */
export const startProjects = component => {
  const { element } = component;
  let typed = '';
  let isTyping = false;
  let top = 0;
  on(
    element,
    'scroll',
    target => {
      if (find('details[open]', element)) top = target.scrollTop;
    },
    true,
  );
  on(element, 'input', target => {
    if (target instanceof HTMLInputElement && target.id === 'project-name') typed = target.value;
  });
  on(element, 'focusin', target => {
    isTyping = target.id === 'project-name';
  });
  on(element, 'click', target => {
    if (target.closest('[data-act="project:create"], [data-act="project:rename"]')) typed = '';
  });
  keepMenuOpen(component, () => {
    const name = find('#project-name', element);
    const box = find('details > div', element);
    if (!(name instanceof HTMLInputElement) || !box) return;
    name.value = typed;
    if (isTyping) name.focus();
    box.scrollTop = top;
  });
};
