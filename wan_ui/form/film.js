// The film: its shots in their order and the sound below, drawn as a timeline. What is changed is written as JSON into the field
// that the form sends; empty is no storyboard. A shot that is made has in `made` the job of its video, and the `recipe` that it was
// made by: as long as that is the shot's own, and it goes on from the same shot, it is kept. After `parts/talk.js`, before the others.
const USUAL_SECONDS = 2;  // drawn for a shot whose length is the form's
const film = (() => {
  const state = {on: false, shots: [], track: null, chosen: null, jobs: []};
  let filled = null, alone = null;

  const newId = () => Math.random().toString(36).slice(2, 10).padEnd(8, '0');
  const block = given => ({
    id: newId(), prompt: '', seconds: '', seed: '', start: 'on', image: null, fade: 0, trim: null, made: null, ...given,
  });
  const place = id => state.shots.findIndex(one => one.id === id);
  const chosen = () => state.shots[place(state.chosen)];
  const isFirst = one => state.shots[0] === one;
  const goesOn = one => one.start === 'on' && !isFirst(one);

  // What a shot is made by, and what the one after it goes on from.
  const recipe = one => JSON.stringify([one.prompt, one.seconds, one.seed, goesOn(one) ? 'on' : one.start === 'image' ? one.image?.path : 'cut']);
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
  const row = one => isKept(one)
    ? {job: one.made.job, num_frames: one.made.frames, prompt: one.prompt, cut: one.start !== 'on', fade: fadeOf(one),
      ...(one.trim || one.made.first ? {trim: [beginOf(one), endOf(one)]} : {})}
    : {prompt: one.prompt.trim(), seconds: one.seconds, seed: one.seed, fade: fadeOf(one), cut: one.start === 'cut' && !isFirst(one),
      ...(one.start === 'image' && one.image ? {image: one.image.path} : {}), ...(one.trim && !one.made ? {trim: one.trim} : {})};
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
    if (alone !== null) delete Object.assign(rows[0], {fade: 0}).cut;
    return JSON.stringify({shots: rows, blocks: shots.map(one => one.id), ...sound});
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
      localStorage.setItem('studio-film', JSON.stringify({shots: state.shots, track: state.track, jobs: state.jobs}));
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
    track.show();
    say();
  };
  const drawn = (one, index, scale) => {
    const item = document.createElement('li'), button = document.createElement('button'), made = isKept(one);
    const length = seconds(one).toFixed(1), kind = isFirst(one) ? 'first' : fadeOf(one) ? 'fade' : one.start === 'on' ? 'on' : 'cut';
    Object.assign(button, {type: 'button', className: 'film-block'});
    Object.assign(button.dataset, {id: one.id, made, joint: kind});
    item.style.width = `${Math.max(76, seconds(one) * scale)}px`;
    const words_of = [fill(words().number, {index: index + 1}), fill(words().seconds_of, {seconds: length}), one.prompt, made ? words().is_made : words().is_new];
    button.setAttribute('aria-label', words_of.filter(Boolean).join(', '));
    button.setAttribute('aria-pressed', one.id === state.chosen);
    const picture = made ? one.made.poster : one.start === 'image' ? one.image?.url : '';
    if (picture) button.append(Object.assign(new Image(), {src: picture, alt: '', draggable: false}));
    const number = Object.assign(document.createElement('b'), {textContent: index + 1});
    const label = Object.assign(document.createElement('span'), {textContent: `${length} s`});
    const caption = Object.assign(document.createElement('i'), {textContent: picture ? '' : one.prompt});
    button.append(number, caption, label);
    item.append(button);
    return item;
  };
  // What pressing Generate will do, said before.
  const say = () => {
    const anew = state.shots.map((one, index) => isKept(one) ? 0 : index + 1).filter(Boolean), made = state.shots.length - anew.length;
    const follow = state.shots.map((one, index) => one.made && !isKept(one) && one.made.recipe === recipe(one) ? index + 1 : 0).filter(Boolean);
    const texts = !state.shots.length ? words().none : !anew.length ? words().all_made : made ? fill(words().some_made, {shots: anew.join(', ')}) : '';
    find('.film-state').textContent = [texts, follow.length ? fill(words().made_anew, {shots: follow.join(', ')}) : ''].filter(Boolean).join(' ');
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
    const isNew = filled !== null;
    filled = given;
    const shown = JSON.parse(given || '{"shots": []}'), kept = !shown.job && remembered(shown.shots.map(one => one.prompt));
    state.on = shown.shots.length > 0;
    state.shots = kept ? kept.shots : shown.shots.map(({cut, image, ...one}) => block({
      ...one, seed: String(one.seed ?? ''), start: image ? 'image' : cut ? 'cut' : 'on', trim: one.trim ?? null,
      image: image ? {path: image, url: addressOf(image)} : null,
    }));
    state.track = kept ? kept.track : shown.track
      ? {path: shown.track, start: shown.track_start ?? 0, fade: shown.track_fade ?? 0, volume: shown.track_volume ?? 1} : null;
    state.jobs = kept ? kept.jobs : [];
    state.chosen = state.shots[0]?.id ?? null;
    if (shown.job) made.follow(shown.job, state.shots.map(one => one.id), true);
    track.load();
    change();
    if (state.jobs.length) made.look();
  };
  const turn = () => {
    state.on = find('.shots-switch input').checked;
    if (state.on && !state.shots.length) {
      state.shots = [block({prompt: document.querySelector('#prompt textarea')?.value ?? ''}), block()];
      state.chosen = state.shots[0].id;
    }
    change();
  };
  element.addEventListener('input', event => { if (event.target.closest('.shots-switch')) turn(); });

  // Generate sends all shots, or the one that is made alone, with that from which it goes on. What is written now must have reached
  // Gradio before the button is pressed.
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
    addBlock: block, beginOf, change, chosenShot: chosen, draw, endOf, fadeOf, goesOn, isFirst, isKept, makeAlone, mark, move, open,
    place, recipe, seconds, total, write,
  });
})();
