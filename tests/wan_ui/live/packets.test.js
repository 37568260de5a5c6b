import assert from 'node:assert/strict';
import { test } from 'node:test';
import { concatenate, lookAction, readPackets } from '../../../wan_ui/live/packets.js';

const packet = (number, body) => {
  const bytes = new Uint8Array(8 + body.length);
  new DataView(bytes.buffer).setUint32(0, number);
  new DataView(bytes.buffer).setUint32(4, body.length);
  bytes.set(body, 8);
  return bytes;
};

test('packets are read however the network cuts them', () => {
  const stream = concatenate(concatenate(packet(0, [1, 2]), packet(1, [])), packet(0xffffffff, [3]));
  for (let cut = 0; cut <= stream.length; cut++) {
    const first = readPackets(stream.slice(0, cut));
    const second = readPackets(concatenate(first.rest, stream.slice(cut)));
    const found = [...first.packets, ...second.packets].map(({ number, isState, body }) => [number, isState, [...body]]);
    assert.deepEqual(found, [
      [0, false, [1, 2]],
      [1, false, []],
      [0xffffffff, true, [3]],
    ]);
    assert.equal(second.rest.length, 0);
  }
});

test('the mouse looks in the direction in which it moves most', () => {
  assert.deepEqual(
    [lookAction(9, -3), lookAction(-9, 3), lookAction(1, 8), lookAction(0, -8)],
    ['look-right', 'look-left', 'look-down', 'look-up'],
  );
  assert.equal(lookAction(2, -2), '');
});
