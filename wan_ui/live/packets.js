// The stream of `wan_ui.live.routes`: packets of a number, a length and a body. The number is a frame number, or STATE for a state.

const STATE = 0xffffffff;
const HEAD_BYTES = 8;

/** Reads all complete packets. Returns the packets and the remaining bytes. @param {Uint8Array<ArrayBuffer>} bytes */
export const readPackets = bytes => {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const packets = [];
  let at = 0;
  while (bytes.length - at >= HEAD_BYTES) {
    const number = view.getUint32(at);
    const end = at + HEAD_BYTES + view.getUint32(at + 4);
    if (bytes.length < end) break;
    packets.push({ number, isState: number === STATE, body: bytes.slice(at + HEAD_BYTES, end) });
    at = end;
  }
  return { packets, rest: bytes.slice(at) };
};

/** @param {Uint8Array} first @param {Uint8Array} second */
export const concatenate = (first, second) => {
  const whole = new Uint8Array(first.length + second.length);
  whole.set(first);
  whole.set(second, first.length);
  return whole;
};

/** Returns the action of a drag of the mouse, by its main direction, "" for a very short drag.
 * @param {number} across Pixels to the right. @param {number} down Pixels. */
export const lookAction = (across, down) => {
  if (Math.max(Math.abs(across), Math.abs(down)) < 3) return '';
  if (Math.abs(across) > Math.abs(down)) return across > 0 ? 'look-right' : 'look-left';
  return down > 0 ? 'look-down' : 'look-up';
};
