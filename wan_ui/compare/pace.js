// How the videos of a comparison keep together.

/**
 * How a video follows the one that sets the pace.
 *
 * Returns its speed, and the time to which it jumps; null if it need not. A video that is heard sets the pace in real time, so the
 * others change their speed for a moment: a jump at each loop would be seen, because sound starts 0.04 s late (measured).
 * @param {{time: number, duration: number}} follower In seconds.
 * @param {{time: number, isHeard: boolean}} pace
 * @param {number} fps
 */
export const correction = (follower, pace, fps) => {
  const wanted = Math.min(pace.time, follower.duration - 0.01);
  const gap = wanted - follower.time;
  const speed = pace.isHeard && Math.abs(gap) > 0.01 ? 1 + Math.max(-0.25, Math.min(0.25, 4 * gap)) : 1;
  const mostFrames = pace.isHeard ? 3 : 1;
  return { speed, jump: Math.abs(gap) > mostFrames / fps ? Math.max(0, wanted) : null };
};
