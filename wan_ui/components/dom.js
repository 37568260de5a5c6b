// Typed helpers that find and create elements, and listen to events.

/** @param {string} selector @param {ParentNode} [root] @returns {HTMLElement | null} */
export const find = (selector, root = document) => root.querySelector(selector);

/** @param {string} selector @param {ParentNode} [root] @returns {HTMLElement[]} */
export const findAll = (selector, root = document) => Array.from(root.querySelectorAll(selector));

/** Returns the first element that matches. Throws without a match, or if the element has another type.
 * @template {Element} T
 * @param {string} selector @param {new () => T} kind @param {ParentNode} [root] @returns {T} */
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

/** Creates an element with these properties and children. `dataset` has the values of its data attributes.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag @param {Partial<Omit<HTMLElementTagNameMap[K], 'dataset'>> & {dataset?: Record<string, string>}} properties
 * @param {(Node | string)[]} children @returns {HTMLElementTagNameMap[K]} */
export const create = (tag, { dataset, ...properties }, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  Object.assign(made.dataset, dataset);
  made.append(...children);
  return made;
};

/** Changes the text of an element inside its text node: a new node makes the browser compute all styles around it again.
 * @param {Element} element @param {string} text */
export const showText = (element, text) => {
  if (element.textContent === text) return;
  const [only, ...others] = element.childNodes;
  if (only instanceof Text && !others.length) only.data = text;
  else element.textContent = text;
};

/** Calls `act` for each event at or inside an element that matches `selector`, with this element.
 * @template {keyof HTMLElementEventMap} K @template {HTMLElement} [T=HTMLElement]
 * @param {EventTarget} root @param {K} kind @param {string} selector
 * @param {(found: T, event: HTMLElementEventMap[K]) => void} act
 * @param {boolean} [isFirst] Whether `act` runs before the listeners of the elements inside `root`. */
export const on = (root, kind, selector, act, isFirst = false) => {
  const listen = (/** @type {Event} */ event) => {
    const found = event.target instanceof Element && event.target.closest(selector);
    if (found) act(/** @type {T} */ (found), /** @type {HTMLElementEventMap[K]} */ (event));
  };
  root.addEventListener(kind, listen, isFirst);
};

/** As `on`, before the listeners of the elements inside `root`. Also for events that do not bubble. @type {typeof on} */
export const onFirst = (root, kind, selector, act) => on(root, kind, selector, act, true);

/** Calls `act` with the chosen files of a field. Empties the field, so that the same file can be chosen again.
 * @param {EventTarget} root @param {string} selector @param {(files: File[], field: HTMLInputElement) => void} act */
export const onFiles = (root, selector, act) =>
  on(root, 'change', selector, (/** @type {HTMLInputElement} */ field) => {
    const files = [...(field.files ?? [])];
    field.value = '';
    if (files.length) act(files, field);
  });

/** @param {EventTarget} root @param {(target: HTMLElement, event: PointerEvent) => void} act */
export const onRelease = (root, act) => {
  for (const kind of /** @type {const} */ (['pointerup', 'pointercancel'])) on(root, kind, '*', act);
};

/** Sends all further events of a pressed pointer to `target`, until the pointer is released.
 * @param {Element} target @param {PointerEvent} event */
export const capture = (target, event) => {
  try {
    target.setPointerCapture(event.pointerId);
  } catch {
    // The pointer has already been released.
  }
};

/** @typedef {{move: (event: PointerEvent) => void, end?: () => void}} Drag */

/** Listens to drags. `start` captures the pointer and returns what the drag does, undefined to ignore the press.
 * @param {EventTarget} root @param {string} selector @param {(target: HTMLElement, event: PointerEvent) => Drag | undefined} start */
export const onDrag = (root, selector, start) => {
  /** @type {Drag | undefined} */
  let drag;
  on(root, 'pointerdown', selector, (target, event) => {
    drag = start(target, event);
  });
  on(root, 'pointermove', '*', (_, event) => drag?.move(event));
  onRelease(root, () => {
    drag?.end?.();
    drag = undefined;
  });
};

/** Keeps a menu open when Gradio renders it again.
 * @param {GradioComponent} component @param {() => void} [restore] Restores the contents of the open menu. */
export const keepMenuOpen = ({ element, watch }, restore) => {
  let isOpen = false;
  onFirst(element, 'toggle', '*', (/** @type {HTMLDetailsElement} */ menu) => {
    isOpen = menu.open === true;
  });
  watch('value', () => {
    const menu = find('details', element);
    if (!isOpen || !menu) return;
    menu.setAttribute('open', '');
    restore?.();
  });
};

/** Starts a video. A browser that refuses leaves it paused. @param {HTMLMediaElement} media */
export const play = media => media.play().catch(() => {});

export const togglePlaying = (/** @type {HTMLMediaElement | null} */ media) => {
  if (media?.paused) play(media);
  else media?.pause();
};
