// Texts with places for values.

/** @typedef {Record<string, string | number>} Values */

/**
 * Fills the places of a text: `fill('{count} steps', {count: 4})` is "4 steps". A format, as in `{seconds:.1f}`, is ignored.
 * @param {string} text @param {Values} values
 */
export const fill = (text, values) => text.replace(/\{(\w+)(:[^}]*)?\}/g, (_, name) => String(values[name]));

/** @param {number} value @param {number} least @param {number} most */
export const clamp = (value, least, most) => Math.min(most, Math.max(least, value));
