// Synchronization of the videos of a comparison.
import { clamp } from '../components/text.js';

/** Returns the playback speed of a video that follows another video, and the time to which the follower must jump, or null.
 *
 * An audible video plays in real time. Its followers close small gaps by another speed instead of a jump. A jump would be visible
 * at each loop, because a video with audio starts 0.04 s late (measured).
 * @param {{time: number, duration: number}} follower In seconds.
 * @param {{time: number, isAudible: boolean}} pace The followed video.
 * @param {number} fps */
export const correctPlayback = (follower, pace, fps) => {
  const wanted = Math.min(pace.time, follower.duration - 0.01);
  const gap = wanted - follower.time;
  const speed = pace.isAudible && Math.abs(gap) > 0.01 ? 1 + clamp(4 * gap, -0.25, 0.25) : 1;
  const mostFrames = pace.isAudible ? 3 : 1;
  return { speed, jump: Math.abs(gap) > mostFrames / fps ? Math.max(0, wanted) : null };
};
