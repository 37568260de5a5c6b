// Finds the characters that a prompt names, in the same way as `backend/schemas/characters.py`.

/** @typedef {{path: string, url: string, name?: string}} Picture */
/** @typedef {{name: string, image: Picture | null}} Figure */

/** A letter of a script without spaces between words. */
const WITHOUT_SPACES = /[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\u{20000}-\u{3ffff}]/u;

/** Returns a name with single spaces. @param {string} text */
export const plainName = text => text.trim().split(/\s+/u).join(' ');

const isPartOfWord = (/** @type {string} */ letter) => /[\p{L}\p{M}\p{N}_]/u.test(letter) && !WITHOUT_SPACES.test(letter);

/** Returns whether a name can start or end at its first or last letter `edge`. False inside a word: if both `edge` and the next
 * letter of the prompt, `beside`, belong to words.
 * @param {string | undefined} beside @param {string} edge */
const isEdge = (beside, edge) => !beside || !isPartOfWord(beside) || !isPartOfWord(edge);

/** Returns the letters of a text in lower case. @param {string} text */
const lettersOf = text => [...plainName(text).toLowerCase()];

/** Returns the characters that a prompt names, in the order of `figures`. Inside a longer name, a shorter name does not count.
 * @param {string} prompt @param {readonly Figure[]} figures */
export const findNamedCharacters = (prompt, figures) => {
  if (!figures.length) return [];
  const left = lettersOf(prompt);
  const found = new Set();
  for (const figure of figures.toSorted((one, other) => lettersOf(other.name).length - lettersOf(one.name).length)) {
    const name = lettersOf(figure.name);
    for (let start = 0; name.length && start + name.length <= left.length; start++) {
      const end = start + name.length;
      if (name.some((letter, index) => left[start + index] !== letter)) continue;
      if (!isEdge(left[start - 1], name[0]) || !isEdge(left[end], name[name.length - 1])) continue;
      left.fill('\0', start, end);
      found.add(figure);
    }
  }
  return figures.filter(figure => found.has(figure));
};
