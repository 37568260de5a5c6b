// Plays the whole: the made shots one after another with their fades and the sound, and a card for each that is not made yet.
// Two players take turns, so that the next shot is there when it begins.
const play = (() => {
  let parts = [], time = 0, last = 0, isPlaying = false, shown = -1;

  const root = () => find('.film-player');
  const players = () => [...root().querySelectorAll('video')];
  const audio = () => root().querySelector('audio');
  const end = () => parts.length ? parts.at(-1).to : 0;
  const partAt = moment => Math.max(0, parts.findLastIndex(part => part.from <= moment));

  const open = () => {
    let from = 0;
    parts = film.shots.map((one, index) => {
      from -= film.fadeOf(one);
      const isMade = film.isKept(one);
      const part = {
        from, to: from + film.seconds(one), fade: film.fadeOf(one), index, prompt: one.prompt,
        source: isMade ? one.made.video : '', begin: isMade ? film.beginOf(one) : 0,
        picture: one.start === 'image' ? one.image?.url : '',
      };
      from = part.to;
      return part;
    });
    if (!parts.length) return;
    root().hidden = false;
    for (const video of players()) { video.removeAttribute('src'); video.dataset.part = ''; }
    seek(0);
    resume();
    root().scrollIntoView({block: 'nearest'});
  };
  const close = () => {
    pause();
    root().hidden = true;
    for (const video of players()) { video.removeAttribute('src'); video.load(); }
  };
  const prepared = index => {
    const part = parts[index], video = players()[index % 2];
    if (!part?.source) return null;
    if (video.dataset.part !== String(index)) {
      video.dataset.part = index;
      video.src = part.source;
      video.currentTime = part.begin;
    }
    return video;
  };
  const seek = moment => {
    time = Math.min(Math.max(0, moment), Math.max(0, end() - 0.01));
    shown = -1;
    for (const video of players()) video.pause();
    const own = film.track, sound = audio();
    if (own) sound.currentTime = Math.max(0, time - own.start);
    step();
  };
  const step = () => {
    const at = partAt(time), part = parts[at], video = prepared(at), next = parts[at + 1];
    if (at !== shown) {
      shown = at;
      if (video) {
        const wanted = part.begin + time - part.from;
        if (Math.abs(video.currentTime - wanted) > 0.15) video.currentTime = wanted;
      }
      card(part);
    }
    const share = part.fade ? Math.min(1, (time - part.from) / part.fade) : 1;
    players().forEach((one, place) => {
      const isOwn = one === video, isBefore = at > 0 && place === (at - 1) % 2 && share < 1 && parts[at - 1].source;
      one.style.opacity = isOwn ? share : isBefore ? 1 : 0;
      one.style.zIndex = isOwn ? 1 : 0;
      if ((isOwn || isBefore) && isPlaying) { if (one.paused) one.play().catch(() => {}); } else if (!one.paused) one.pause();
      one.volume = isOwn ? share : 1 - share;
    });
    if (next?.source && share >= 1) prepared(at + 1);
    follow();
    const said = `${time.toFixed(1)} / ${end().toFixed(1)} s`;
    const slider = root().querySelector('input'), output = root().querySelector('output');
    if (slider !== document.activeElement || isPlaying) slider.value = end() ? 1000 * time / end() : 0;
    if (output.textContent !== said) output.textContent = said;
  };
  const card = part => {
    const text = root().querySelector('p');
    text.hidden = !!part.source;
    text.textContent = `${part.index + 1}  ${part.prompt}`;
    text.style.backgroundImage = part.picture ? `url("${part.picture}")` : '';
  };
  // The sound keeps to the film's time.
  const follow = () => {
    const own = film.track, sound = audio();
    if (!own) return;
    const heard = time - own.start, left = Math.min(sound.duration || Infinity, end() - own.start) - heard;
    sound.volume = Math.min(1, own.volume) * (own.fade ? Math.max(0, Math.min(1, heard / own.fade, left / own.fade)) : 1);
    if (!isPlaying || heard < 0 || left <= 0) return sound.pause();
    if (Math.abs(sound.currentTime - heard) > 0.25) sound.currentTime = heard;
    if (sound.paused) sound.play().catch(() => {});
  };
  const tick = now => {
    if (!isPlaying || !element.isConnected) return;
    const waits = players().some(one => one.dataset.part === String(shown) && one.readyState < 2 && one.hasAttribute('src'));
    if (!waits) time += Math.min(0.1, (now - last) / 1000);
    last = now;
    if (time >= end()) {
      seek(0);
      return pause();
    }
    step();
    requestAnimationFrame(tick);
  };
  const resume = () => {
    isPlaying = true;
    last = performance.now();
    draw();
    requestAnimationFrame(tick);
  };
  const pause = () => {
    isPlaying = false;
    for (const video of players()) video.pause();
    audio().pause();
    draw();
  };
  const draw = () => {
    root().dataset.playing = isPlaying;
    root().querySelector('[data-shot=pause]').textContent = isPlaying ? words().pause : words().play;
  };
  element.addEventListener('click', event => {
    const what = event.target.closest('[data-shot]')?.dataset.shot;
    if (what === 'play') open();
    if (what === 'pause') isPlaying ? pause() : resume();
    if (what === 'close') close();
  });
  element.addEventListener('input', event => {
    if (event.target.closest('.film-bar')) seek(event.target.value / 1000 * end());
  });
  return {close};
})();
