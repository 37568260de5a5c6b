// The figures: names with a picture each, shown to the shots whose prompts name them. After `film.js`. Names are found as
// `backend/contract/figures.py` finds them.
const figures = (() => {
  const MOST = 8, EVERY_NAME = /^[\p{L} ]{1,40}$/u;
  const APART = [[0x0e00, 0x0eff], [0x1000, 0x109f], [0x1780, 0x17ff], [0x2e80, 0x9fff], [0xac00, 0xd7af], [0xf900, 0xfaff],
    [0x20000, 0x3ffff]];  // scripts without blanks between words
  let offered = [], removed = [];

  const most = () => Number(/data-most="(\d+)"/.exec(window.studioFigures ?? '')?.[1] ?? 0);
  const plain = text => text.trim().split(/\s+/u).join(' ');
  const isOfWord = one => /[\p{L}\p{M}\p{N}_]/u.test(one);
  const isIn = ([from, to], code) => from <= code && code <= to;
  const goesTogether = one => isOfWord(one) && !APART.some(range => isIn(range, one.codePointAt()));
  const isApart = (beside, edge) => !(beside && goesTogether(beside) && goesTogether(edge));
  // Those that a prompt names; of names within one another the longest.
  const called = prompt => {
    if (!film.figures.length) return [];
    let left = [...plain(prompt).toLowerCase()];
    const found = new Set(), length = one => [...plain(one.name)].length;
    for (const one of [...film.figures].sort((a, b) => length(b) - length(a))) {
      const name = [...plain(one.name).toLowerCase()];
      for (let start = 0; name.length && start + name.length <= left.length; start++) {
        const end = start + name.length;
        if (name.some((letter, index) => left[start + index] !== letter)) continue;
        if (!isApart(left[start - 1], name[0]) || !isApart(left[end], name.at(-1))) continue;
        left.fill('\0', start, end);
        found.add(one);
      }
    }
    return film.figures.filter(one => found.has(one));
  };
  // And that the chosen model is shown; what a shot was made by does not follow the model, like all else of the form.
  const named = prompt => most() ? called(prompt) : [];
  const paths = prompt => called(prompt).map(one => one.image?.path ?? '');
  const sent = () => most() ? film.figures.map(one => ({name: plain(one.name), image: one.image?.path ?? null})) : [];

  // On a block: a small round picture each, and their names for those who do not see them.
  const faces = prompt => {
    const row = document.createElement('em');
    for (const one of named(prompt)) row.append(face(one));
    return row.childElementCount ? [row] : [];
  };
  const face = one => {
    if (one.image) return Object.assign(new Image(), {src: one.image.url, alt: '', title: one.name, draggable: false});
    return Object.assign(document.createElement('u'), {textContent: [...one.name][0] ?? '?', title: one.name});
  };
  const names = prompt => named(prompt).map(one => one.name).join(', ');

  const box = () => find('.film-figures');
  const emptyRow = () => box().querySelector('template').content.firstElementChild.cloneNode(true);
  const show = () => {
    const root = box(), isTaken = most() > 0, list = root.querySelector('ul');
    root.dataset.taken = isTaken;
    root.querySelector('.hint').textContent = !isTaken ? words().figures_none
      : most() === 1 ? words().figures_hint_one : fill(words().figures_hint, {count: most()});
    while (list.children.length > film.figures.length) list.lastChild.remove();
    film.figures.forEach((one, index) => {
      const row = list.children[index] ?? list.appendChild(emptyRow());
      const name = row.querySelector('[name=figure]'), picture = row.querySelector('img');
      row.dataset.place = index;
      if (name !== document.activeElement) name.value = one.name;
      picture.hidden = !one.image;
      if (one.image && picture.getAttribute('src') !== one.image.url) picture.src = one.image.url;
      const places = film.shots.flatMap((shot, at) => named(shot.prompt).includes(one) ? [at + 1] : []);
      const says = places.length ? fill(words().figure_in, {shots: places.join(', ')}) : words().figure_unused;
      row.querySelector('output').textContent = says;
    });
    root.querySelector('.film-file').hidden = !isTaken || film.figures.length >= MOST;
    const known = new Set(film.figures.map(one => plain(one.name).toLowerCase()));
    const others = isTaken && film.figures.length < MOST ? offers().filter(one => !known.has(one.name.toLowerCase())) : [];
    const before = root.querySelector('.film-known');
    before.hidden = !others.length;
    before.querySelector('span').replaceChildren(...others.map(one => {
      const button = Object.assign(document.createElement('button'), {type: 'button'});
      button.dataset.figure = 'again';
      button.dataset.path = one.path;
      button.append(Object.assign(new Image(), {src: addressOf(one.path), alt: ''}), one.name);
      return button;
    }));
  };
  // Those that were taken out here, and those of the project's earlier storyboards.
  const offers = () => {
    const names = new Set(removed.map(one => one.name.toLowerCase()));
    return [...removed, ...offered.filter(one => !names.has(one.name.toLowerCase()))];
  };
  const look = async () => {
    if (!film.on || !most()) return;
    try {
      const answer = await fetch('studio/figures');
      if (answer.ok) offered = (await answer.json()).figures;
    } catch { return; }
    show();
  };
  const follow = () => {
    film.change();
    look();
  };

  const pictureOf = async file => {
    const path = file && await uploaded(file);
    return path ? {path, url: addressOf(path)} : null;
  };
  const add = async file => {
    const image = await pictureOf(file), stem = file.name.replace(/\.[^.]*$/, '');
    if (!image || film.figures.length >= MOST) return;
    film.figures.push({name: EVERY_NAME.test(stem) ? stem : '', image});
    film.change();
    const name = box().querySelector('li:last-child [name=figure]');
    name.focus();
    name.select();
  };
  const remove = at => {
    const [{name, image}] = film.figures.splice(at, 1), own = plain(name);
    if (!image || !own) return;
    removed = [{name: own, path: image.path}, ...removed.filter(one => one.name.toLowerCase() !== own.toLowerCase())];
  };
  const place = target => film.figures[target.closest('li')?.dataset.place];
  element.addEventListener('change', async event => {
    const {name} = event.target, file = event.target.files?.[0];
    if (!['figure-new', 'figure-picture'].includes(name) || !file) return;
    event.target.value = '';
    if (name === 'figure-new') return add(file);
    const one = place(event.target), image = await pictureOf(file);
    if (!one || !image) return;
    one.image = image;
    film.change();
  });
  element.addEventListener('input', event => {
    if (event.target.name !== 'figure') return;
    place(event.target).name = event.target.value;
    film.change();
  });
  element.addEventListener('click', event => {
    const button = event.target.closest('[data-figure]'), what = button?.dataset.figure;
    if (what === 'remove') remove(button.closest('li').dataset.place);
    const again = what === 'again' && offers().find(one => one.path === button.dataset.path && button.textContent === one.name);
    if (again) film.figures.push({name: again.name, image: {path: again.path, url: addressOf(again.path)}});
    if (what) film.change();
  });
  document.addEventListener('click', event => {
    if (element.isConnected && event.target.closest?.('[data-act^="project:"]')) setTimeout(look, 1000);
  });

  return {faces, follow, look, named, names, paths, sent, show};
})();
