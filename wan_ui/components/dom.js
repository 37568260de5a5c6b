// Typed helpers that find elements and listen to events.

/** @param {string} selector @param {ParentNode} [root] @returns {HTMLElement | null} */
export const find = (selector, root = document) => root.querySelector(selector);

/** @param {string} selector @param {ParentNode} [root] @returns {HTMLElement[]} */
export const findAll = (selector, root = document) => [
  .../** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll(selector)),
];

/**
 * Returns the first element that matches. Throws without a match, or if the element has another type.
 * @template {Element} T
 * @param {string} selector @param {new () => T} kind @param {ParentNode} [root] @returns {T}
 */
export const get = (selector, kind, root = document) => {
  const found = root.querySelector(selector);
  if (!(found instanceof kind)) throw new Error(`the page has no ${kind.name} that matches ${selector}`);
  return found;
};

/** @param {string} selector @param {ParentNode} [root] */
export const input = (selector, root) => get(selector, HTMLInputElement, root);

/** @param {string} selector @param {ParentNode} [root] */
export const video = (selector, root) => get(selector, HTMLVideoElement, root);

/** @param {string} selector @param {ParentNode} [root] @returns {HTMLVideoElement | null} */
export const findVideo = (selector, root = document) => root.querySelector(selector);

/** @param {Element | null | undefined} element @returns {element is HTMLElement} */
export const isShown = element => element instanceof HTMLElement && element.offsetParent !== null;

/**
 * Changes the text of an element inside its text node: a new node makes the browser compute all styles around it again.
 * @param {Element} element @param {string} text
 */
export const showText = (element, text) => {
  if (element.textContent === text) return;
  const [only, ...others] = element.childNodes;
  if (only instanceof Text && !others.length) only.data = text;
  else element.textContent = text;
};

/** @param {Element} target */
export const isTyping = target =>
  target.closest('textarea, select, [contenteditable], input:not([type=range]):not([type=checkbox])') !== null;

/** Returns the value of a field. @param {Element} target */
export const fieldValue = target =>
  target instanceof HTMLInputElement || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement
    ? target.value
    : '';

/**
 * Returns the chosen files of a field. Empties the field, so that the same file can be chosen again.
 * @param {Element} target @returns {File[]}
 */
export const filesOf = target => {
  if (!(target instanceof HTMLInputElement)) return [];
  const files = [...(target.files ?? [])];
  target.value = '';
  return files;
};

/**
 * Calls `act` for each event, with the element of the event.
 * @template {keyof HTMLElementEventMap} K
 * @param {EventTarget} root @param {K} kind
 * @param {(target: Element, event: HTMLElementEventMap[K]) => void} act
 * @param {boolean} [isFirst] Whether `act` runs before the listeners of the elements inside `root`.
 */
export const on = (root, kind, act, isFirst = false) =>
  root.addEventListener(
    kind,
    event => {
      if (event.target instanceof Element) act(event.target, /** @type {HTMLElementEventMap[K]} */ (event));
    },
    isFirst,
  );

/**
 * Keeps a menu open when Gradio renders it again.
 * @param {GradioComponent} component @param {() => void} [restore] Restores the contents of the open menu.
 */
export const keepMenuOpen = ({ element, watch }, restore) => {
  let isOpen = false;
  on(
    element,
    'toggle',
    target => {
      isOpen = target instanceof HTMLDetailsElement && target.open;
    },
    true,
  );
  watch('value', () => {
    const menu = find('details', element);
    if (!isOpen || !(menu instanceof HTMLDetailsElement)) return;
    menu.open = true;
    restore?.();
  });
};

/**
 * Sends all further events of a pressed pointer to `target`, until the pointer is released.
 * @param {Element} target @param {PointerEvent} event
 */
export const capture = (target, event) => {
  try {
    target.setPointerCapture(event.pointerId);
  } catch {
    // The pointer has already been released.
  }
};

/** @param {EventTarget} root @param {(target: Element, event: PointerEvent) => void} act */
export const onRelease = (root, act) => {
  on(root, 'pointerup', act);
  on(root, 'pointercancel', act);
};

/** Starts a video. A browser that refuses leaves it paused. @param {HTMLMediaElement} media */
export const play = media => media.play().catch(() => {});

/** @param {HTMLMediaElement | null} media */
export const togglePlaying = media => {
  if (media?.paused) play(media);
  else media?.pause();
};
