// The chosen shot: its words, its length, how it begins; and what is done to blocks, by pointer, keys and buttons.
const edit = (() => {
  const detail = () => find('.shot-detail');
  const input = name => detail().querySelector(`[name="${name}"]`);
  const seen = (target, isSeen) => { target.hidden = !isSeen; };

  const show = () => {
    const one = film.chosenShot(), root = detail();
    seen(root, one);
    if (!one) return;
    const index = film.place(one.id), kept = film.isKept(one);
    root.querySelector('legend').textContent = fill(words().number, {index: index + 1});
    const values = {
      prompt: one.prompt, start: one.start, seconds: one.seconds, seed: one.seed, fade: one.fade || '',
      from: kept ? round(film.beginOf(one)) : '', to: kept ? round(film.endOf(one)) : '',
    };
    for (const [name, value] of Object.entries(values))
      if (input(name) !== document.activeElement) input(name).value = value;
    seen(root.querySelector('.shot-picture'), one.start === 'image');
    const picture = root.querySelector('.shot-picture img');
    if (one.image) picture.src = one.image.url;
    seen(picture, one.image);
    seen(input('fade').closest('label'), index > 0 && (one.start !== 'on' || kept));
    for (const name of ['from', 'to']) seen(input(name).closest('label'), kept);
    for (const name of ['seconds', 'seed']) seen(input(name).closest('label'), !kept || !one.made.kept);
    const shown = figures.named(one.prompt), cast = root.querySelector('.shot-figures');
    seen(cast, film.figures.length && !kept);
    cast.textContent = shown.length ? fill(words().shot_with, {names: figures.names(one.prompt)}) : words().shot_without;
    const stale = one.made && !kept, before = film.shots[index - 1];
    seen(root.querySelector('[data-shot=keep]'), stale);
    seen(root.querySelector('[data-shot=alone]'), !film.goesOn(one) || film.isKept(before));
    root.querySelector('[data-shot=up]').disabled = index === 0;
    root.querySelector('[data-shot=down]').disabled = index === film.shots.length - 1;
  };
  const round = value => Math.round(1000 * value) / 1000;

  const take = async (one, file) => {
    if (!file) return;
    const path = await uploaded(file);
    if (!path) return;
    one.image = {path, url: addressOf(path), name: file.name};
    film.change();
  };
  element.addEventListener('input', event => {
    const one = film.chosenShot(), {name, value} = event.target;
    if (!one || !event.target.closest('.shot-detail') || event.target.type === 'file') return;
    if (name === 'from' || name === 'to') return trim(one);
    one[name] = name === 'fade' ? Math.min(2, Math.max(0, Number(value) || 0)) : value;
    film.change();
  });
  const trim = one => {
    const end = one.made.frames / one.made.fps, frame = 1 / one.made.fps;
    const from = Math.max(0, Math.min(Number(input('from').value) || 0, end - frame));
    const to = Math.min(end, Math.max(Number(input('to').value) || end, from + frame));
    one.trim = [from, to];
    film.change();
  };
  element.addEventListener('change', event => {
    const one = film.chosenShot();
    if (event.target.name === 'image' && one) {
      take(one, event.target.files[0]);
      event.target.value = '';
    }
    if (event.target.closest('.shot-detail')) show();
  });

  // A made shot is split into two parts of its video; one that is not made yet into two of half its length.
  const split = one => {
    const at = film.place(one.id) + 1;
    if (!film.isKept(one)) {
      const half = String(round((Number(one.seconds) || USUAL_SECONDS) / 2));
      one.seconds = half;
      return insert(at, {prompt: one.prompt, seconds: half});
    }
    const {fps} = one.made, [from, to] = [film.beginOf(one), film.endOf(one)];
    const middle = Math.round((from + to) / 2 * fps) / fps;
    if (middle <= from || middle >= to) return;
    one.trim = [from, middle];
    const made = {...one.made, kept: true, recipe: [0, one.prompt]};
    insert(at, {...copy(one), start: 'on', fade: 0, trim: [middle, to], made});
  };
  const copy = ({prompt, seconds, seed, image}) => ({prompt, seconds, seed, image});
  const double = one => {
    const start = film.isFirst(one) && one.start === 'on' ? 'cut' : one.start;
    const made = film.isKept(one) && (start !== 'on' || one.made.kept) ? {...one.made} : null;
    insert(film.place(one.id) + 1, {...copy(one), start, fade: one.fade, trim: made ? one.trim : null, made});
  };
  const insert = (at, given) => {
    const one = film.addBlock(given);
    film.shots.splice(at, 0, one);
    film.chosen = one.id;
    film.change();
    find(`[data-id="${one.id}"]`)?.scrollIntoView({block: 'nearest', inline: 'nearest'});
  };
  const remove = one => {
    const at = film.place(one.id);
    film.shots.splice(at, 1);
    film.chosen = film.shots[Math.min(at, film.shots.length - 1)]?.id ?? null;
    film.change();
  };
  const keep = one => {
    one.made = {...one.made, kept: true, recipe: [0, one.prompt]};
    film.change();
  };
  const acts = {
    add: () => { insert(film.shots.length, {}); input('prompt').focus(); },
    split, double, remove, keep,
    alone: one => film.makeAlone(one.id),
    up: one => film.move(one.id, film.place(one.id) - 1),
    down: one => film.move(one.id, film.place(one.id) + 1),
  };
  element.addEventListener('click', event => {
    const button = event.target.closest('[data-shot]'), blockButton = event.target.closest('.film-block');
    if (blockButton && !wasDragged) choose(blockButton.dataset.id);
    const act = acts[button?.dataset.shot];
    if (act) act(film.chosenShot());
    if (['up', 'down'].includes(button?.dataset.shot)) button.focus();
  });
  const choose = id => {
    film.chosen = id;
    film.draw();
  };
  element.addEventListener('keydown', event => {
    const target = event.target.closest('.film-block'), step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!target || !step) return;
    event.preventDefault();
    const at = film.place(target.dataset.id);
    if (event.altKey) return film.move(target.dataset.id, at + step);
    const next = film.shots[at + step];
    if (!next) return;
    choose(next.id);
    find(`[data-id="${next.id}"]`).focus();
  });

  // A block is dragged with a mouse or a pen; a finger moves the timeline, and has the buttons.
  let held = null, wasDragged = false;
  element.addEventListener('pointerdown', event => {
    const target = event.target.closest('.film-block');
    wasDragged = false;
    if (!target || event.pointerType === 'touch' || event.button !== 0) return;
    held = {id: target.dataset.id, x: event.clientX, item: target.closest('li'), to: null};
  });
  window.addEventListener('pointermove', event => {
    if (!held) return;
    const by = event.clientX - held.x;
    if (!wasDragged && Math.abs(by) < 6) return;
    wasDragged = true;
    held.item.classList.add('held');
    held.item.style.transform = `translateX(${by}px)`;
    const others = [...find('.film').children].filter(one => one !== held.item);
    const middle = held.item.getBoundingClientRect().left + held.item.offsetWidth / 2;
    const isBefore = box => box.left + box.width / 2 < middle;
    held.to = others.filter(one => isBefore(one.getBoundingClientRect())).length;
    others.forEach((one, index) => { one.dataset.gap = index === held.to; });
  });
  const release = () => {
    if (!held) return;
    const {id, item, to} = held;
    held = null;
    item.classList.remove('held');
    item.style.transform = '';
    if (!wasDragged || to === null) return;
    film.chosen = id;
    if (to === film.place(id)) film.draw();
    else film.move(id, to);
  };
  for (const kind of ['pointerup', 'pointercancel', 'blur']) window.addEventListener(kind, release);

  return {show};
})();
