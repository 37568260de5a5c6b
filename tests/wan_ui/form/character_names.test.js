import assert from 'node:assert/strict';
import { test } from 'node:test';
import { findNamedCharacters } from '../../../wan_ui/form/character_names.js';

const named = (prompt, ...names) =>
  findNamedCharacters(
    prompt,
    names.map(name => ({ name, image: null })),
  ).map(figure => figure.name);

test('a figure is named by a whole word, in any case and with any spaces', () => {
  assert.deepEqual(named('then ANNA  maria waves', 'Anna Maria'), ['Anna Maria']);
  assert.deepEqual(named('Annabelle waves', 'Anna'), []);
  assert.deepEqual(named('to Anna, and Anna’s dog', 'Anna'), ['Anna']);
});

test('of names inside one another the longest counts', () => {
  assert.deepEqual(named('Anna Maria waves', 'Anna', 'Anna Maria'), ['Anna Maria']);
  assert.deepEqual(named('Anna and Anna Maria', 'Anna', 'Anna Maria'), ['Anna', 'Anna Maria']);
});

test('scripts without spaces have no words around a name', () => {
  assert.deepEqual(named('小红在跑步', '小红'), ['小红']);
});

test('an empty name is never named', () => {
  assert.deepEqual(named('anything', ''), []);
});
