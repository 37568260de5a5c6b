// Clips beside the one that drives: a face, and the clip into which a figure is put, with its mask. Each is sent when it is
// chosen, and the server says whether it can be used.
const besides = (() => {
  const state = {face: null, video: null, mask: null};

  const take = async (name, file) => {
    note('');
    const isPicture = name === 'mask' && /^image\//.test(file.type) && file.type !== 'image/gif';
    const path = await uploaded(file), facts = path && await send(isPicture ? '/picture' : '/clip', isPicture ? {picture: path} : {clip: path});
    if (facts) state[name] = {path: facts.path, name: facts.name};
    show();
  };
  const show = () => {
    for (const [name, one] of Object.entries(state)) {
      const row = find(`[data-beside="${name}"]`);
      if (!row) continue;
      row.querySelector('output').textContent = one?.name ?? '';
      row.querySelector('button').hidden = !one;
    }
    ways.showMake();
    edit.estimate();
  };
  element.addEventListener('change', event => {
    const name = event.target.closest?.('[data-beside]')?.dataset.beside;
    if (!name || !event.target.files?.length) return;
    take(name, event.target.files[0]);
    event.target.value = '';
  });
  element.addEventListener('click', event => {
    const row = event.target.closest?.('[data-beside]');
    if (row && event.target.matches('button')) { state[row.dataset.beside] = null; show(); }
  });

  const isTaken = () => edit.limits().inputs.includes('face');
  // What the server is sent; nothing where the model takes none.
  const asked = () => isTaken() ? Object.fromEntries(Object.entries(state).map(([name, one]) => [name, one?.path])) : {};
  const isWhole = () => !isTaken() || (!!state.face && !state.video === !state.mask);
  // An earlier video's files.
  const restore = given => { for (const name in state) state[name] = given?.[name] ?? null; show(); };

  return {asked, isWhole, restore};
})();
