// The clip: what the visitor brought, and which part of it is taken. It plays here from the visitor's own file; the server is
// sent the file once, and then says what it is and shows pictures of it. `facts` is what it says, null without a clip; the part
// begins at `start` (seconds) and has so many `frames` of the model's rate; `fits` says whether the clip is long enough for the
// model.
const RESTING_MILLISECONDS = 40;  // between two looks at a player that stands still
const clip = (() => {
  const state = {facts: null, start: 0, frames: 0, fits: false};
  let address = '', turn = 0;

  // The clip. One that is dropped while another is being read takes its place.
  const take = async file => {
    if (!find('.clip')) return;
    const own = ++turn;
    note('');
    if (file.size > Number(words().bytes)) return note(words().large);
    busy(true);
    const path = await uploaded(file), facts = path && await send('/clip', {clip: path});
    if (own !== turn) return;
    busy(false);
    if (facts) show(facts, URL.createObjectURL(file), file.type === 'image/gif' || /\.gif$/i.test(file.name));
  };
  const busy = isBusy => {
    find('.edit').dataset.busy = isBusy;
    find('.clip .drop').textContent = isBusy ? words().reading : words().drop;
  };
  const show = (facts, source, isStill) => {
    if (address) URL.revokeObjectURL(address);
    address = source;
    Object.assign(state, {facts, start: 0, frames: 0});
    find('.edit').dataset.clip = facts.name;
    find('.timeline').hidden = false;
    find('.thumbs').src = facts.thumbnails;
    const player = find('#edit-player'), still = find('.clip .still');
    for (const one of [player, still]) { one.hidden = true; one.removeAttribute('src'); }
    if (isStill) [still.src, still.hidden] = [address, false];
    else if (address) [player.src, player.hidden] = [address, false];
    find('.clip').style.setProperty('--ratio', facts.width / facts.height);
    const sound = facts.has_sound ? ` · ${words().sound}` : '';
    find('.timeline .facts').textContent = fill(words().facts, {...facts, seconds: facts.seconds.toFixed(1)}) + sound;
    for (const name of ['#edit-from', '#edit-to']) find(name).max = facts.seconds;
    edit.chooseSize();
    ways.proposeMargins();
    brush.clear();
    part(0, edit.usualLength());
    ways.choose(ways.current());
    edit.estimateLarger();
  };
  // As many of the thumbnails as lie beside each other in their own shape, each cut to its place.
  const drawFilm = () => {
    const sheet = find('.thumbs'), strip = find('.strip'), film = find('.film');
    if (!sheet?.naturalWidth || !strip.clientWidth) return;
    const count = Number(strip.dataset.count), [width, height] = [sheet.naturalWidth / count, sheet.naturalHeight];
    const scale = window.devicePixelRatio || 1;
    [film.width, film.height] = [strip.clientWidth * scale, strip.clientHeight * scale];
    const places = Math.max(1, Math.min(count, Math.round(film.width / film.height * height / width)));
    const wide = film.width / places, shape = Math.min(width / height, wide / film.height);
    const [across, down] = [shape * height, shape * film.height / wide * height];
    for (let place = 0; place < places; place++) {
      const left = Math.floor((place + 0.5) * count / places) * width + (width - across) / 2;
      film.getContext('2d').drawImage(sheet, left, (height - down) / 2, across, down, place * wide, 0, wide, film.height);
    }
  };
  element.addEventListener('load', event => { if (event.target.matches?.('.thumbs')) drawFilm(); }, true);
  window.addEventListener('resize', drawFilm);
  // What the browser cannot play is still shown, by a thumbnail.
  const cannotPlay = async () => {
    const thumbs = find('.thumbs'), still = find('.clip .still');
    if (!find('#edit-player').getAttribute('src')) return;
    find('#edit-player').hidden = true;
    try { await thumbs.decode(); } catch { return; }
    const count = Number(find('.strip').dataset.count), [width, height] = [thumbs.naturalWidth / count, thumbs.naturalHeight];
    const canvas = Object.assign(document.createElement('canvas'), {width, height});
    canvas.getContext('2d').drawImage(thumbs, Math.floor(count / 2) * width, 0, width, height, 0, 0, width, height);
    [still.src, still.hidden] = [canvas.toDataURL('image/jpeg'), false];
  };

  // The part. Frames are counted at the model's own rate, and only so many are taken as it can make. The handles go there. The
  // first one moves the part, the last one makes it longer and shorter. Where the clip goes on, its part may have any length.
  const anyLength = {frame_step: 1, first_frames: 1, min_frames: 1, max_frames: Infinity};
  const counts = () => ways.current() === 'extend' ? {...edit.limits(), ...anyLength} : edit.limits();
  const rounding = () => Number(find('.strip').dataset.rounding);
  const most = start => Math.min(counts().max_frames, Math.floor((state.facts.seconds - start) * edit.limits().fps + rounding()));
  const latestStart = frames => state.facts.seconds - (frames - rounding()) / edit.limits().fps;
  const partEnd = () => state.start + state.frames / edit.limits().fps;
  const fitting = (count, start) => {
    const {frame_step: step, first_frames: first, min_frames: least} = counts(), highest = most(start);
    const nearest = first + step * Math.round((count - first) / step);
    return Math.max(least, Math.min(nearest, first + step * Math.floor((highest - first) / step)));
  };
  const part = (start, count) => {
    const {fps, min_frames: least, title} = counts(), {seconds} = state.facts;
    const last = Math.max(0, latestStart(least));
    state.start = Math.floor(100 * Math.min(Math.max(0, start), last)) / 100;
    state.frames = fitting(count, state.start);
    state.fits = most(state.start) >= least;
    const end = partEnd();
    if (!state.fits) note(fill(words().short, {model: title, frames: least, seconds: (least / fps).toFixed(2)}));
    ways.showMake();
    ways.showOverlap();
    find('#edit-from').value = state.start;
    find('#edit-to').value = end;
    const strip = find('.strip');
    strip.style.setProperty('--from', `${100 * state.start / seconds}%`);
    strip.style.setProperty('--to', `${100 * Math.min(1, end / seconds)}%`);
    find('#edit-part').textContent = fill(words().part, {
      start: state.start.toFixed(2), end: end.toFixed(2), frames: state.frames, fps, length: (state.frames / fps).toFixed(2),
    });
    edit.estimate();
    const player = find('#edit-player');
    if (!player.hidden && (player.currentTime < state.start || player.currentTime > end)) player.currentTime = state.start;
    brush.play();
  };
  element.addEventListener('input', event => {
    if (!state.facts) return;
    const {fps} = edit.limits(), {id} = event.target, value = Number(event.target.value);
    if (id === 'edit-from') part(value, state.frames);
    if (id === 'edit-to') part(state.start, Math.round((value - state.start) * fps));
  });
  // The whole part is moved by its middle.
  let held = null;
  element.addEventListener('pointerdown', event => {
    if (!event.target.matches('.taken') || !state.facts) return;
    capture(event.target, event);
    held = {x: event.clientX, start: state.start};
  });
  element.addEventListener('pointermove', event => {
    if (!held) return;
    const start = held.start + (event.clientX - held.x) / find('.strip').clientWidth * state.facts.seconds;
    part(Math.min(start, latestStart(state.frames)), state.frames);
  });
  onRelease(() => { held = null; });
  // The player stays in the part; a line shows where it is. Animation frames are asked for only while it plays: each has the
  // page drawn.
  const follow = () => {
    const player = find('#edit-player'), isSeen = state.facts && player && !player.hidden && element.offsetParent !== null;
    isSeen && !player.paused ? requestAnimationFrame(follow) : setTimeout(follow, RESTING_MILLISECONDS);
    if (!isSeen) return;
    if (!player.seeking && (player.currentTime >= partEnd() || player.ended)) {
      player.currentTime = state.start;
      brush.play();
    }
    find('.strip').style.setProperty('--now', `${100 * player.currentTime / state.facts.seconds}%`);
  };
  follow();

  return Object.assign(state, {cannotPlay, drawFilm, end: partEnd, part, show, take});
})();

