// The strokes of the brush, and the conversion of the pointer's position to a point of the frame.

/** @typedef {[number, number]} Point In pixels of the frame. */
/** @typedef {{points: Point[], width: number, erases: boolean}} Line */
/** @typedef {Line | {picture: CanvasImageSource} | {clears: true}} Stroke */

/** Returns the visible strokes: all strokes after the last Clear. @param {readonly Stroke[]} strokes */
export const seenStrokes = strokes => strokes.slice(strokes.findLastIndex(one => 'clears' in one) + 1);

/** @param {readonly Stroke[]} strokes */
export const isPainted = strokes => seenStrokes(strokes).some(one => 'picture' in one || ('points' in one && !one.erases));

/** Returns the point of the frame below a pointer. The frame is centered in its box, as large as possible.
 * @param {{x: number, y: number}} pointer @param {{left: number, top: number, width: number, height: number}} box
 * @param {{width: number, height: number}} frame @returns {Point} */
export const pointOnFrame = (pointer, box, frame) => {
  const scale = scaleOf(box, frame);
  return [
    (pointer.x - box.left - (box.width - frame.width * scale) / 2) / scale,
    (pointer.y - box.top - (box.height - frame.height * scale) / 2) / scale,
  ];
};

/** @param {{width: number, height: number}} box @param {{width: number, height: number}} frame */
export const scaleOf = (box, frame) => Math.min(box.width / frame.width, box.height / frame.height);

/** Returns the width of a brush in pixels. @param {{width: number, height: number}} frame @param {number} percent Share of the shorter side. */
export const penWidth = (frame, percent) => Math.max(1, (Math.min(frame.width, frame.height) * percent) / 100);

/** Gives light pixels the brush's color, and makes all other pixels transparent. @param {Uint8ClampedArray} data RGBA. @param {number[]} color */
export const paintLight = (data, color) => {
  for (let at = 0; at < data.length; at += 4) {
    const light = 0.299 * data[at] + 0.587 * data[at + 1] + 0.114 * data[at + 2];
    const isPaint = light > 127 && data[at + 3] > 127;
    data.set([...color, isPaint ? 255 : 0], at);
  }
};
