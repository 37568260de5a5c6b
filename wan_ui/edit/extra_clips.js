// Inputs beside the driving video: a clip of the face, and a clip with its mask in which the person is replaced. Each file is uploaded
// when it is chosen, and the server checks it.
import { get, on, onFiles } from '../components/dom.js';

/** @typedef {{path: string, name: string}} ExtraClip */
/** @typedef {'face' | 'video' | 'mask'} Name */

/** @param {ViewClient} client @param {{limits: () => import('./clip_math.js').Limits | null, changed: () => void}} view */
export const createExtraClips = ({ element, note, one, send, upload }, view) => {
  /** @type {Record<Name, ExtraClip | null>} */
  const state = { face: null, video: null, mask: null };
  const names = /** @type {Name[]} */ (Object.keys(state));

  const show = () => {
    for (const name of names) {
      const row = one(`[data-beside="${name}"]`);
      get('output', HTMLElement, row).textContent = state[name]?.name ?? '';
      get('button', HTMLElement, row).hidden = !state[name];
    }
    view.changed();
  };
  /** Returns the input to which a field or button belongs. @param {HTMLElement} part */
  const nameOf = part => /** @type {Name} */ (/** @type {HTMLElement} */ (part.closest('[data-beside]')).dataset.beside);
  onFiles(element, '[data-beside] input', async ([file], field) => {
    const name = nameOf(field);
    note('');
    const isPicture = name === 'mask' && /^image\//.test(file.type) && file.type !== 'image/gif';
    const path = await upload(file);
    const facts = path && (await send(isPicture ? '/picture' : '/clip', { [isPicture ? 'picture' : 'clip']: path }));
    if (facts) state[name] = { path: facts.path, name: facts.name };
    show();
  });
  on(element, 'click', '[data-beside] button', button => {
    state[nameOf(button)] = null;
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
