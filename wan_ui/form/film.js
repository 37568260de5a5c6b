// The film: its shots in their order and the sound below, as a timeline. What is changed is written as JSON into the field
// that the form sends; empty is no storyboard. A shot that is made has in `made` the job of its video, and the `recipe` that it
// was made by: as long as that is the shot's own, and it goes on from the same shot, it is kept. After `parts/talk.js`, before
// the others.
const USUAL_SECONDS = 2;  // drawn for a shot whose length is the form's
const film = (() => {
  const state = {on: false, shots: [], figures: [], track: null, chosen: null, jobs: []};
  let alone = null;

  const newId = () => Math.random().toString(36).slice(2, 10).padEnd(8, '0');
  const block = given => ({
    id: newId(), prompt: '', seconds: '', seed: '', start: 'on', image: null, fade: 0, trim: null, made: null, ...given,
  });
  const place = id => state.shots.findIndex(one => one.id === id);
  const chosen = () => state.shots[place(state.chosen)];
  const isFirst = one => state.shots[0] === one;
  const goesOn = one => one.start === 'on' && !isFirst(one);

  // What a shot is made by, and what the one after it goes on from.
  const recipe = one => {
    const start = goesOn(one) ? 'on' : one.start === 'image' ? one.image?.path : 'cut';
    const shown = figures.paths(one.prompt);
    return JSON.stringify([one.prompt, one.seconds, one.seed, start, ...(shown.length ? [shown] : [])]);
  };
  const endOf = one => one.trim ? one.trim[1] : one.made.frames / one.made.fps;
  const beginOf = one => one.trim ? one.trim[0] : one.made.first / one.made.fps;
  const mark = one => one?.made && isKept(one) ? `${one.made.job}@${endOf(one).toFixed(3)}` : '';
  const isKept = one => {
    if (!one.made) return false;
    if (one.made.kept) return one.made.recipe[1] === one.prompt;
    if (one.made.recipe !== recipe(one)) return false;
    return !goesOn(one) || one.made.after === mark(state.shots[place(one.id) - 1]);
  };
  const seconds = one => isKept(one) ? Math.max(0.01, endOf(one) - beginOf(one)) : Number(one.seconds) || USUAL_SECONDS;
  const fadeOf = one => isFirst(one) || (!isKept(one) && goesOn(one)) ? 0 : Number(one.fade) || 0;
  const total = () => state.shots.reduce((sum, one) => sum + seconds(one) - fadeOf(one), 0);

  // As the server reads it: a kept shot is named by its job.
  const row = one => {
    const fade = fadeOf(one), {prompt, seconds, seed} = one;
    if (isKept(one)) {
      const trim = one.trim || one.made.first ? {trim: [beginOf(one), endOf(one)]} : {};
      return {job: one.made.job, num_frames: one.made.frames, fps: one.made.fps, prompt, cut: one.start !== 'on', fade, ...trim};
    }
    const image = one.start === 'image' && one.image ? {image: one.image.path} : {};
    return {prompt: prompt.trim(), seconds, seed, cut: one.start === 'cut' && !isFirst(one), fade, ...image};
  };
  const sent = () => {
    if (alone === null) return state.shots;
    const at = place(alone), one = state.shots[at];
    return goesOn(one) ? [state.shots[at - 1], one] : [one];
  };
  const text = () => {
    if (!state.on) return '';
    const shots = sent(), {track} = state;
    const sound = track && alone === null
      ? {track: track.path, track_start: track.start, track_fade: track.fade, track_volume: track.volume} : {};
    const rows = shots.map(row);
    rows[0].fade = 0;
    const cast = figures.sent();
    return JSON.stringify({shots: rows, blocks: shots.map(one => one.id), ...(cast.length ? {figures: cast} : {}), ...sound});
  };
  const field = () => document.querySelector('#shots textarea, #shots input');
  const write = () => {
    find('.shots').dataset.on = state.on;
    const target = field(), now = text();
    if (target && target.value !== now) {
      target.value = now;
      target.dispatchEvent(new Event('input', {bubbles: true}));
    }
    remember();
  };
  // The browser keeps what the server does not: which videos the shots are.
  const remember = () => {
    if (!state.shots.length) return;
    try {
      localStorage.setItem('studio-film', JSON.stringify({
        shots: state.shots, figures: state.figures, track: state.track, jobs: state.jobs,
      }));
    } catch { /* then it is not there after a reload */ }
  };
  const remembered = prompts => {
    try {
      const kept = JSON.parse(localStorage.getItem('studio-film') ?? 'null');
      const own = kept?.shots.map(one => one.prompt.trim());
      return JSON.stringify(own) === JSON.stringify(prompts) ? kept : null;
    } catch { return null; }
  };

  const change = () => { draw(); write(); };
  const draw = () => {
    const list = find('.film'), focused = list.contains(document.activeElement) ? document.activeElement.dataset.id : null;
    const shortest = Math.min(...state.shots.map(seconds), USUAL_SECONDS), scale = Math.min(110, Math.max(26, 92 / shortest));
    list.replaceChildren(...state.shots.map((one, index) => drawn(one, index, scale)));
    if (focused) list.querySelector(`[data-id="${focused}"]`)?.focus({preventScroll: true});
    edit.show();
    figures.show();
    track.show();
    say();
  };
  const drawn = (one, index, scale) => {
    const item = document.createElement('li'), button = document.createElement('button'), made = isKept(one);
    const length = seconds(one).toFixed(1), joint = isFirst(one) ? 'first' : fadeOf(one) ? 'fade' : one.start;
    Object.assign(button, {type: 'button', className: 'film-block'});
    Object.assign(button.dataset, {id: one.id, made, joint});
    item.style.width = `${Math.max(76, seconds(one) * scale)}px`;
    const says = [fill(words().number, {index: index + 1}), fill(words().seconds_of, {seconds: length}), one.prompt];
    const cast = figures.names(one.prompt);
    if (cast) says.push(fill(words().shot_with, {names: cast}));
    button.setAttribute('aria-label', [...says, made ? words().is_made : words().is_new].filter(Boolean).join(', '));
    button.setAttribute('aria-pressed', one.id === state.chosen);
    const picture = made ? one.made.poster : one.start === 'image' ? one.image?.url : '';
    if (picture) {
      const image = Object.assign(new Image(), {src: picture, alt: '', draggable: false});
      if (made) image.addEventListener('error', () => forgetIfGone(one, picture));
      button.append(image);
    }
    const number = Object.assign(document.createElement('b'), {textContent: index + 1, ariaHidden: 'true'});
    const label = Object.assign(document.createElement('span'), {textContent: `${length} s`, ariaHidden: 'true'});
    const caption = Object.assign(document.createElement('i'), {textContent: picture ? '' : one.prompt, ariaHidden: 'true'});
    button.append(number, caption, label, ...figures.faces(one.prompt));
    item.append(button);
    return item;
  };
  // A shot whose video is no longer in the library is to be made again.
  const forgetIfGone = async (one, address) => {
    try {
      if ((await fetch(address)).status !== 404) return;
    } catch { return; }
    one.made = one.trim = null;
    change();
  };
  // What pressing Generate will do, said before.
  const say = () => {
    const numbers = is => state.shots.map((one, index) => is(one) ? index + 1 : 0).filter(Boolean);
    const anew = numbers(one => !isKept(one)), isSome = anew.length < state.shots.length;
    const after = numbers(one => one.made && !isKept(one) && one.made.recipe === recipe(one));
    const first = !state.shots.length ? words().none : !anew.length ? words().all_made
      : isSome ? fill(words().some_made, {shots: anew.join(', ')}) : '';
    const second = after.length ? fill(words().made_anew, {shots: after.join(', ')}) : '';
    find('.film-state').textContent = `${first} ${second}`.trim();
  };
  const move = (id, to) => {
    const from = place(id), last = state.shots.length - 1;
    to = Math.min(last, Math.max(0, to));
    if (from < 0 || to === from) return;
    const first = state.shots[0];
    if (first.start === 'on' && isKept(first)) first.start = 'cut';  // it was made from nothing before it, wherever it goes
    state.shots.splice(to, 0, ...state.shots.splice(from, 1));
    change();
  };

  // The page was opened, or a request's shots are to be shown.
  const open = () => {
    const root = find('.shots'), given = root.dataset.film;
    if (root.dataset.drawn) return;
    root.dataset.drawn = 'true';
    const shown = JSON.parse(given || '{"shots": []}'), kept = !shown.job && remembered(shown.shots.map(one => one.prompt));
    state.on = shown.shots.length > 0;
    state.shots = kept ? kept.shots : shown.shots.map(({cut, image, ...one}) => block({
      ...one, seed: String(one.seed ?? ''), start: image ? 'image' : cut ? 'cut' : 'on',
      image: image ? {path: image, url: addressOf(image)} : null,
    }));
    state.track = kept ? kept.track : shown.track
      ? {path: shown.track, start: shown.track_start ?? 0, fade: shown.track_fade ?? 0, volume: shown.track_volume ?? 1} : null;
    state.figures = kept ? kept.figures ?? [] : (shown.figures ?? []).map(({name, image}) => ({
      name, image: image ? {path: image, url: addressOf(image)} : null,
    }));
    state.jobs = kept ? kept.jobs : [];
    state.chosen = state.shots[0]?.id ?? null;
    if (shown.job) made.follow(shown.job, state.shots.map(one => one.id), true);
    track.load();
    change();
    if (state.jobs.length) made.look();
    figures.look();
  };
  const turn = () => {
    state.on = find('.shots-switch input').checked;
    if (state.on && !state.shots.length) {
      const prompt = document.querySelector('#prompt textarea')?.value ?? '';
      state.shots = [block({prompt}), block()];
      state.chosen = state.shots[0].id;
    }
    change();
    figures.look();
  };
  element.addEventListener('input', event => { if (event.target.closest('.shots-switch')) turn(); });

  // A finished video of the stage or the library becomes a shot, whatever has made it.
  document.addEventListener('click', event => {
    const button = event.target.closest?.('[data-take]');
    if (!button || !element.isConnected) return;
    const {prompt, ...video} = JSON.parse(button.dataset.take);
    const one = block({prompt, start: 'cut', made: {...video, after: '', kept: true, recipe: [0, prompt]}});
    state.shots.push(one);
    state.chosen = one.id;
    state.on = find('.shots-switch input').checked = true;
    change();
    figures.look();
  });

  // Generate sends all shots, or the one that is made alone, with that from which it goes on. What is written now must have
  // reached Gradio before the button is pressed.
  let isPassing = false;
  document.addEventListener('click', event => {
    const button = event.target.closest?.('#generate');
    if (!button || !state.on || isPassing || !element.isConnected) return;
    if (alone === null && field()?.value === text()) return;
    event.stopImmediatePropagation();
    event.preventDefault();
    write();
    press(button);
  }, true);
  const press = button => setTimeout(() => {
    isPassing = true;
    button.click();
    isPassing = false;
    setTimeout(() => { alone = null; }, 0);
  }, 120);
  const makeAlone = id => {
    alone = id;
    document.querySelector('#generate')?.click();
  };

  return Object.assign(state, {
    addBlock: block, beginOf, change, chosenShot: chosen, draw, endOf, fadeOf, goesOn, isFirst, isKept, makeAlone, mark, move,
    open, place, recipe, seconds, total, write,
  });
})();
