// Texts with placeholders, and numbers.

/** @typedef {Record<string, string | number>} Values */

/** Fills the placeholders of a text: `fill('{count} steps', {count: 4})` is "4 steps". Formats such as `{seconds:.1f}` are ignored.
 * @param {string} text @param {Values} values */
export const fill = (text, values) => text.replace(/\{(\w+)(:[^}]*)?\}/g, (_, name) => String(values[name]));

/** @param {number} value @param {number} least @param {number} most */
export const clamp = (value, least, most) => Math.min(most, Math.max(least, value));
