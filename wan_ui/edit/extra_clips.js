// Clips beside the one that drives: a face, and the clip into which a character is put, with its mask. Each is sent when it is
// chosen, and the server says whether it can be used.
import { filesOf, find, on } from '../components/dom.js';

/** @typedef {{path: string, name: string}} ExtraClip */
/** @typedef {'face' | 'video' | 'mask'} Name */

/**
 * @param {import('../components/http.js').ViewClient} client
 * @param {{limits: () => import('./clip_math.js').Limits | null, changed: () => void}} view
 */
export const createExtraClips = (client, view) => {
  const { element, note, send, upload } = client;
  /** @type {Record<Name, ExtraClip | null>} */
  const state = { face: null, video: null, mask: null };
  const names = /** @type {Name[]} */ (Object.keys(state));

  /** @param {Name} name @param {File} file */
  const take = async (name, file) => {
    note('');
    const isPicture = name === 'mask' && /^image\//.test(file.type) && file.type !== 'image/gif';
    const path = await upload(file);
    const facts = path && (await send(isPicture ? '/picture' : '/clip', { [isPicture ? 'picture' : 'clip']: path }));
    if (facts) state[name] = { path: facts.path, name: facts.name };
    show();
  };
  const show = () => {
    for (const name of names) {
      const row = find(`[data-beside="${name}"]`, element);
      const output = row && find('output', row);
      const button = row && find('button', row);
      if (output) output.textContent = state[name]?.name ?? '';
      if (button) button.hidden = !state[name];
    }
    view.changed();
  };
  /** The row of a field or a button. @param {Element} target */
  const nameOf = target =>
    /** @type {Name | undefined} */ (/** @type {HTMLElement | null} */ (target.closest('[data-beside]'))?.dataset.beside);
  on(element, 'change', target => {
    const name = nameOf(target);
    const [file] = name ? filesOf(target) : [];
    if (name && file) take(name, file);
  });
  on(element, 'click', target => {
    const name = nameOf(target);
    if (!name || !target.matches('button')) return;
    state[name] = null;
    show();
  });

  const isTaken = () => view.limits()?.inputs.includes('face') ?? false;

  return {
    /** What the server is sent; nothing if the model takes none of them. */
    asked: () => (isTaken() ? Object.fromEntries(names.map(name => [name, state[name]?.path])) : {}),
    /** A face is needed; a mask and its clip belong together. */
    isComplete: () => !isTaken() || (state.face !== null && (state.video === null) === (state.mask === null)),
    /** Shows an earlier video's clips. @param {Partial<Record<Name, ExtraClip>> | null | undefined} given */
    restore: given => {
      for (const name of names) state[name] = given?.[name] ?? null;
      show();
    },
  };
};
