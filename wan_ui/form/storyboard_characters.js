// The characters: names with images. A shot uses a character's image if its prompt contains the name.
import { create, get, input as getInput, on, onFiles } from '../components/dom.js';
import { addressOf } from '../components/http.js';
import { fill } from '../components/text.js';
import { findNamedCharacters, plainName } from './character_names.js';

const MOST = 8;
const NAME = /^[\p{L} ]{1,40}$/u;
const PROJECT_MILLISECONDS = 1000; // until the characters of another project are requested

/** @typedef {{name: string, path: string}} Offer */

/** @param {ViewClient} client @param {import('./storyboard_detail.js').Editing} editing */
export const createCharacters = (client, { film, change, maxCharacters }) => {
  const { element, words, one, upload } = client;
  /** Characters of the project's earlier storyboards. @type {Offer[]} */
  let offered = [];
  /** Characters that were removed on this page. @type {Offer[]} */
  let removed = [];

  /** Returns the characters that the selected model uses for a prompt. @param {string} prompt */
  const named = prompt => (maxCharacters() ? findNamedCharacters(prompt, film.figures) : []);
  const names = (/** @type {string} */ prompt) => Array.from(named(prompt), figure => figure.name).join(', ');

  /** Returns the small images on a shot. @param {string} prompt */
  const faces = prompt => {
    const all = named(prompt).map(({ name, image }) =>
      image
        ? create('img', { src: image.url, alt: '', title: name, draggable: false })
        : create('u', { textContent: [...name][0] ?? '?', title: name }),
    );
    return all.length ? [create('em', {}, ...all)] : [];
  };

  const show = () => {
    const isTaken = maxCharacters() > 0;
    const canAdd = isTaken && film.figures.length < MOST;
    one('.film-figures').dataset.taken = String(isTaken);
    one('.film-figures .hint').textContent = !isTaken
      ? words().characters_unsupported
      : maxCharacters() === 1
        ? words().characters_hint_one
        : fill(words().characters_hint, { count: maxCharacters() });
    const list = one('.film-figures ul');
    const { content } = get('.film-figures template', HTMLTemplateElement, element);
    while (list.children.length > film.figures.length) list.lastElementChild?.remove();
    while (list.children.length < film.figures.length) list.append(content.cloneNode(true));
    for (const [index, figure] of film.figures.entries()) {
      const row = /** @type {HTMLElement} */ (list.children[index]);
      const name = getInput('[name=figure]', row);
      const picture = get('img', HTMLImageElement, row);
      row.dataset.place = String(index);
      if (name !== document.activeElement) name.value = figure.name;
      picture.hidden = !figure.image;
      if (figure.image && picture.getAttribute('src') !== figure.image.url) picture.src = figure.image.url;
      const shots = film.shots.flatMap((shot, at) => (named(shot.prompt).includes(figure) ? [at + 1] : []));
      const text = shots.length ? fill(words().character_shots, { shots: shots.join(', ') }) : words().character_unused;
      get('output', HTMLOutputElement, row).textContent = text;
    }
    one('.film-figures .film-file').hidden = !canAdd;
    const known = new Set(film.figures.map(figure => plainName(figure.name).toLowerCase()));
    const others = canAdd ? offers().filter(offer => !known.has(offer.name.toLowerCase())) : [];
    one('.film-known').hidden = !others.length;
    one('.film-known span').replaceChildren(
      ...others.map(({ name, path }) => {
        const image = create('img', { src: addressOf(path), alt: '' });
        return create('button', { type: 'button', dataset: { figure: 'again', path } }, image, name);
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

  const uploadPicture = async (/** @type {File} */ file) => {
    const path = await upload(file);
    return path ? { path, url: addressOf(path) } : null;
  };
  const placeIn = (/** @type {Element} */ target) => Number(target.closest('li')?.dataset.place);
  onFiles(element, '[name="figure-new"]', async ([file]) => {
    const image = await uploadPicture(file);
    const stem = file.name.replace(/\.[^.]*$/, '');
    if (!image || film.figures.length >= MOST) return;
    film.figures.push({ name: NAME.test(stem) ? stem : '', image });
    change();
    const name = client.input('.film-figures li:last-child [name=figure]');
    name.focus();
    name.select();
  });
  onFiles(element, '[name="figure-picture"]', async ([file], field) => {
    const figure = film.figures[placeIn(field)];
    const image = await uploadPicture(file);
    if (!figure || !image) return;
    figure.image = image;
    change();
  });
  on(element, 'input', '[name="figure"]', (/** @type {HTMLInputElement} */ field) => {
    film.figures[placeIn(field)].name = field.value;
    change();
  });
  on(element, 'click', '[data-figure="remove"]', button => {
    const [{ name, image }] = film.figures.splice(placeIn(button), 1);
    const own = plainName(name);
    if (image && own)
      removed = [{ name: own, path: image.path }, ...removed.filter(offer => offer.name.toLowerCase() !== own.toLowerCase())];
    change();
  });
  on(element, 'click', '[data-figure="again"]', ({ dataset, textContent }) => {
    const again = offers().find(({ name, path }) => path === dataset.path && name === textContent);
    if (again) film.figures.push({ name: again.name, image: { path: again.path, url: addressOf(again.path) } });
    change();
  });
  on(document, 'click', '[data-act^="project:"]', () => {
    if (element.isConnected) setTimeout(refresh, PROJECT_MILLISECONDS);
  });

  return { faces, names, refresh, show };
};
