import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createDraftOrder } from '../../../wan_ui/form/draft_order.js';

test('an older draft never follows a newer draft, and each is shown once', () => {
  const order = createDraftOrder();
  const [first, second, third] = [order.next(), order.next(), order.next()];
  assert.deepEqual([second, first, second, third].map(order.mayShow), [true, false, false, true]);
  assert.deepEqual([first, third].map(order.isNewest), [false, true]);
});

test('a change or a request without an answer is requested again when the tab is shown', () => {
  const order = createDraftOrder();
  assert.equal(order.isUnanswered(), false);
  order.markChanged();
  assert.equal(order.isUnanswered(), true);
  const first = order.next();
  assert.equal(order.isUnanswered(), true);
  order.markAnswered(first);
  assert.equal(order.isUnanswered(), false);
  const second = order.next();
  order.markAnswered(first);
  assert.equal(order.isUnanswered(), true);
  order.markAnswered(second);
  assert.equal(order.isUnanswered(), false);
});

test('drafts that were requested before a video are not shown after it', () => {
  const order = createDraftOrder();
  const before = order.next();
  order.ignoreEarlier();
  assert.equal(order.isUnanswered(), false);
  assert.equal(order.mayShow(before), false);
  assert.equal(order.mayShow(order.next()), true);
});
