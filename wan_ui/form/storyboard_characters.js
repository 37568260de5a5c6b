// The characters: names with images. A shot uses a character's image if its prompt contains the name.
import { fieldValue, filesOf, get, input as getInput, on } from '../components/dom.js';
import { addressOf } from '../components/http.js';
import { fill } from '../components/text.js';
import { findNamedCharacters, plainName } from './character_names.js';

const MOST = 8;
const NAME = /^[\p{L} ]{1,40}$/u;
const PROJECT_MILLISECONDS = 1000; // until the characters of another project are requested

/** @typedef {import('./character_names.js').Figure} Figure */
/** @typedef {{name: string, path: string}} Offer */

/** @param {import('../components/http.js').ViewClient} client @param {import('./storyboard_detail.js').Editing} editing */
export const createCharacters = (client, { film, change, maxCharacters }) => {
  const { element, words, one, upload } = client;
  /** Characters of the project's earlier storyboards. @type {Offer[]} */
  let offered = [];
  /** Characters that were removed on this page. @type {Offer[]} */
  let removed = [];

  /** Returns the characters that the selected model uses for a prompt. @param {string} prompt */
  const named = prompt => (maxCharacters() ? findNamedCharacters(prompt, film.figures) : []);
  /** @param {string} prompt */
  const names = prompt =>
    named(prompt)
      .map(figure => figure.name)
      .join(', ');

  /** Returns the small images on a shot. @param {string} prompt */
  const faces = prompt => {
    const row = document.createElement('em');
    for (const figure of named(prompt)) row.append(face(figure));
    return row.childElementCount ? [row] : [];
  };
  /** @param {Figure} figure */
  const face = ({ name, image }) =>
    image
      ? Object.assign(new Image(), { src: image.url, alt: '', title: name, draggable: false })
      : Object.assign(document.createElement('u'), { textContent: [...name][0] ?? '?', title: name });

  const emptyRow = () => {
    const { content } = get('.film-figures template', HTMLTemplateElement, element);
    return get('li', HTMLLIElement, /** @type {DocumentFragment} */ (content.cloneNode(true)));
  };
  const show = () => {
    const isTaken = maxCharacters() > 0;
    const list = one('.film-figures ul');
    one('.film-figures').dataset.taken = String(isTaken);
    one('.film-figures .hint').textContent = !isTaken
      ? words().characters_unsupported
      : maxCharacters() === 1
        ? words().characters_hint_one
        : fill(words().characters_hint, { count: maxCharacters() });
    while (list.children.length > film.figures.length) list.lastElementChild?.remove();
    film.figures.forEach((figure, index) => {
      const row = /** @type {HTMLElement} */ (list.children[index] ?? list.appendChild(emptyRow()));
      showRow(row, figure, index);
    });
    one('.film-figures .film-file').hidden = !isTaken || film.figures.length >= MOST;
    showOffers(isTaken && film.figures.length < MOST ? offers() : []);
  };
  /** @param {HTMLElement} row @param {Figure} figure @param {number} index */
  const showRow = (row, figure, index) => {
    const name = getInput('[name=figure]', row);
    const picture = get('img', HTMLImageElement, row);
    row.dataset.place = String(index);
    if (name !== document.activeElement) name.value = figure.name;
    picture.hidden = !figure.image;
    if (figure.image && picture.getAttribute('src') !== figure.image.url) picture.src = figure.image.url;
    const shots = film.shots.flatMap((shot, at) => (named(shot.prompt).includes(figure) ? [at + 1] : []));
    const text = shots.length ? fill(words().character_shots, { shots: shots.join(', ') }) : words().character_unused;
    get('output', HTMLOutputElement, row).textContent = text;
  };
  /** @param {Offer[]} all */
  const showOffers = all => {
    const known = new Set(film.figures.map(figure => plainName(figure.name).toLowerCase()));
    const others = all.filter(offer => !known.has(offer.name.toLowerCase()));
    one('.film-known').hidden = !others.length;
    one('.film-known span').replaceChildren(
      ...others.map(({ name, path }) => {
        const button = Object.assign(document.createElement('button'), { type: 'button' });
        Object.assign(button.dataset, { figure: 'again', path });
        button.append(Object.assign(new Image(), { src: addressOf(path), alt: '' }), name);
        return button;
      }),
    );
  };
  const offers = () => {
    const gone = new Set(removed.map(offer => offer.name.toLowerCase()));
    return [...removed, ...offered.filter(offer => !gone.has(offer.name.toLowerCase()))];
  };
  /** Requests the characters of the project's earlier storyboards. */
  const refresh = async () => {
    if (!film.isOn || !maxCharacters()) return;
    try {
      const answer = await fetch('studio/figures');
      if (answer.ok) offered = (await answer.json()).figures;
    } catch {
      return;
    }
    show();
  };
  const showModel = () => {
    change();
    refresh();
  };

  /** @param {File} file */
  const uploadPicture = async file => {
    const path = await upload(file);
    return path ? { path, url: addressOf(path) } : null;
  };
  /** @param {File} file */
  const add = async file => {
    const image = await uploadPicture(file);
    const stem = file.name.replace(/\.[^.]*$/, '');
    if (!image || film.figures.length >= MOST) return;
    film.figures.push({ name: NAME.test(stem) ? stem : '', image });
    change();
    const name = client.input('.film-figures li:last-child [name=figure]');
    name.focus();
    name.select();
  };
  /** @param {number} at */
  const remove = at => {
    const [{ name, image }] = film.figures.splice(at, 1);
    const own = plainName(name);
    if (!image || !own) return;
    removed = [{ name: own, path: image.path }, ...removed.filter(offer => offer.name.toLowerCase() !== own.toLowerCase())];
  };
  /** @param {Element} target */
  const placeIn = target => Number(target.closest('li')?.dataset.place);
  on(element, 'change', async target => {
    const name = target.getAttribute('name') ?? '';
    if (!['figure-new', 'figure-picture'].includes(name)) return;
    const [file] = filesOf(target);
    if (!file) return;
    if (name === 'figure-new') return add(file);
    const figure = film.figures[placeIn(target)];
    const image = await uploadPicture(file);
    if (!figure || !image) return;
    figure.image = image;
    change();
  });
  on(element, 'input', target => {
    if (target.getAttribute('name') !== 'figure') return;
    film.figures[placeIn(target)].name = fieldValue(target);
    change();
  });
  on(element, 'click', target => {
    const button = /** @type {HTMLElement | null} */ (target.closest('[data-figure]'));
    if (!button) return;
    if (button.dataset.figure === 'remove') remove(placeIn(button));
    const { path } = button.dataset;
    const again = offers().find(offer => offer.path === path && button.textContent === offer.name);
    if (again) film.figures.push({ name: again.name, image: { path: again.path, url: addressOf(again.path) } });
    change();
  });
  on(document, 'click', target => {
    if (element.isConnected && target.closest('[data-act^="project:"]')) setTimeout(refresh, PROJECT_MILLISECONDS);
  });

  return { faces, names, refresh, show, showModel };
};
