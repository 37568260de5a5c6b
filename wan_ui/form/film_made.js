// Which shots are made: the server is asked about the jobs that the shots were sent to, until these have ended.
const made = (() => {
  const EVERY = 1500;
  let waiting = 0;

  // `isOld`: the job was made by the shots as they are, which are shown again.
  const follow = (job, blocks, isOld = false) => {
    film.jobs = [...film.jobs.filter(one => one.job !== job), {job, blocks, isOld, recipes: {}, marks: {}}];
    const known = film.jobs.at(-1);
    for (const id of blocks) {
      const one = film.shots[film.place(id)];
      if (one) known.recipes[id] = film.recipe(one);
    }
    known.kept = blocks.filter(id => { const one = film.shots[film.place(id)]; return one && film.isKept(one); });
    look();
  };
  const look = async () => {
    clearTimeout(waiting);
    if (!element.isConnected) return;
    for (const known of [...film.jobs]) await take(known);
    if (film.jobs.length) waiting = setTimeout(look, EVERY);
  };
  const take = async known => {
    const done = () => { film.jobs = film.jobs.filter(one => one !== known); };
    let told;
    try {
      const answer = await fetch(`studio/shots/${encodeURIComponent(known.job)}`);
      if (!answer.ok) return done();
      told = await answer.json();
    } catch { return; }  // the server is away for a moment
    let isChanged = false;
    for (const shot of told.shots) {
      const id = known.blocks[shot.number - 1], at = film.place(id), one = film.shots[at];
      if (!one || known.kept.includes(id) || one.made?.job === shot.job) continue;
      const before = film.shots[film.place(known.blocks[shot.number - 2])];
      one.made = {
        job: shot.job, frames: shot.frames, fps: shot.fps, first: shot.first, video: shot.video, poster: shot.poster,
        recipe: known.recipes[id], after: shot.goes_on ? film.mark(before) : '',
      };
      if (!known.isOld) one.trim = null;
      if (shot.given) Object.assign(one.made, {kept: true, recipe: [0, one.prompt]});
      isChanged = true;
    }
    if (told.has_ended) done();
    if (isChanged) film.change();
  };
  window.studioFilmSent = html => {
    const [, job, blocks] = /data-job="([^"]+)" data-blocks="([^"]*)"/.exec(html ?? '') ?? [];
    if (job) follow(job, blocks.split(',').filter(Boolean));
  };
  return {follow, look};
})();
window.studioFilmTakes = () => { if (element.isConnected && find('.shots').dataset.drawn) figures.follow(); };
watch('value', film.open);
film.open();
