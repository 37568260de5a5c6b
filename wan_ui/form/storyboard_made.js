// The finished shots. The script polls the jobs that generate shots until these jobs have ended.
import { endMark, indexOfShot, isKept, keptRecipe, shotRecipe } from './storyboard_shots.js';

const EVERY_MILLISECONDS = 1500;

/** A job that generates shots. `blocks` are the ids of its shots, `recipes` their recipes, `kept` the ids of shots with a kept
 * video. `isOld`: the job was loaded from the library, and its shots keep their trims.
 * @typedef {{job: string, blocks: string[], isOld: boolean, recipes: Record<string, string>, kept: string[]}} SentJob */

/** @param {ViewClient} client @param {import('./storyboard_detail.js').Editing} editing */
export const createFinishedShots = ({ element }, { film, change }) => {
  let timer = 0;

  const shotOf = (/** @type {string} */ id) => film.shots[indexOfShot(film, id)];

  /** @param {string} job @param {string[]} blocks @param {boolean} [isOld] */
  const follow = (job, blocks, isOld = false) => {
    const shots = blocks.map(shotOf).filter(shot => shot !== undefined);
    const recipes = Object.fromEntries(shots.map(shot => [shot.id, shotRecipe(film, shot)]));
    const kept = shots.filter(shot => isKept(film, shot)).map(shot => shot.id);
    film.jobs = [...film.jobs.filter(one => one.job !== job), { job, blocks, isOld, recipes, kept }];
    poll();
  };
  const poll = async () => {
    clearTimeout(timer);
    if (!element.isConnected) return;
    for (const sent of [...film.jobs]) await readNews(sent);
    if (film.jobs.length) timer = setTimeout(poll, EVERY_MILLISECONDS);
  };
  const stopFollowing = (/** @type {SentJob} */ sent) => {
    film.jobs = film.jobs.filter(one => one !== sent);
  };
  const readNews = async (/** @type {SentJob} */ sent) => {
    let news;
    try {
      const answer = await fetch(`studio/shots/${encodeURIComponent(sent.job)}`);
      if (!answer.ok) return stopFollowing(sent);
      news = await answer.json();
    } catch {
      return; // the server is unreachable for a moment
    }
    let isChanged = false;
    for (const { number, given, goes_on: continued, job, frames, fps, first, video, poster } of news.shots) {
      const id = sent.blocks[number - 1];
      const shot = shotOf(id);
      if (!shot || sent.kept.includes(id) || shot.made?.job === job) continue;
      const after = continued ? endMark(film, shotOf(sent.blocks[number - 2])) : '';
      shot.made = { job, frames, fps, first, video, poster, recipe: sent.recipes[id], after };
      if (!sent.isOld) shot.trim = null;
      if (given) Object.assign(shot.made, { kept: true, recipe: keptRecipe(shot.prompt) });
      isChanged = true;
    }
    if (news.has_ended) stopFollowing(sent);
    if (isChanged) change();
  };

  return { follow, poll };
};
