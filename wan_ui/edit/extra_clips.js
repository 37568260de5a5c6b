// Inputs beside the driving video: a clip of the face, and a clip with its mask in which the person is replaced. Each file is uploaded
// when it is chosen, and the server checks it.
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
  const loadFile = async (name, file) => {
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
  /** Returns the input to which a field or button belongs. @param {Element} target */
  const nameOf = target =>
    /** @type {Name | undefined} */ (/** @type {HTMLElement | null} */ (target.closest('[data-beside]'))?.dataset.beside);
  on(element, 'change', target => {
    const name = nameOf(target);
    const [file] = name ? filesOf(target) : [];
    if (name && file) loadFile(name, file);
  });
  on(element, 'click', target => {
    const name = nameOf(target);
    if (!name || !target.matches('button')) return;
    state[name] = null;
    show();
  });

  const takesFace = () => view.limits()?.inputs.includes('face') ?? false;

  return {
    /** Returns the fields of the request, {} if the model takes no face. */
    requestFields: () => (takesFace() ? Object.fromEntries(names.map(name => [name, state[name]?.path])) : {}),
    /** Returns whether the face is present, and either both the clip and its mask or neither. True if the model takes no face. */
    isComplete: () => !takesFace() || (state.face !== null && (state.video === null) === (state.mask === null)),
    /** Shows the clips of an earlier video. @param {Partial<Record<Name, ExtraClip>> | null | undefined} given */
    restore: given => {
      for (const name of names) state[name] = given?.[name] ?? null;
      show();
    },
  };
};
