// The sound below the film: its waveform where it lies, moved by dragging, with its fade and its volume.
const track = (() => {
  const PEAKS = 1200, MOST_BYTES = 60_000_000;
  let peaks = null, length = 0, source = '';

  const set = () => find('.film-track-set');
  const input = name => find(`.film-track [name="${name}"]`);
  const show = () => {
    const own = film.track;
    set().hidden = find('.film-lane').hidden = !own || !film.shots.length;
    find('.film-file span').textContent = own?.name ?? find('.film-file').dataset.words ?? '';
    if (!own) return;
    for (const [name, value] of [['track_start', own.start], ['track_fade', own.fade], ['track_volume', own.volume]])
      if (input(name) !== document.activeElement) input(name).value = value;
    drawWave();
  };
  const take = async file => {
    if (file.size > MOST_BYTES) return note(words().large);
    const path = await uploaded(file);
    if (!path) return;
    film.track = {path, name: file.name, start: 0, fade: 1, volume: 1};
    load();
    film.change();
  };
  const load = async () => {
    find('.film-file').dataset.words ??= find('.film-file span').textContent;
    const own = film.track, address = own ? addressOf(own.path) : '';
    if (address === source) return;
    [peaks, length, source] = [null, 0, address];
    find('.film-player audio').src = address;
    if (!address) return;
    try {
      const sound = await new OfflineAudioContext(1, 1, 24000).decodeAudioData(await (await fetch(address)).arrayBuffer());
      if (address !== source) return;
      [peaks, length] = [peaksOf(sound), sound.duration];
    } catch { /* no waveform; the server says whether it can be used */ }
    film.draw();
  };
  const peaksOf = sound => {
    const found = new Float32Array(PEAKS), step = sound.length / PEAKS;
    for (let channel = 0; channel < sound.numberOfChannels; channel++) {
      const samples = sound.getChannelData(channel);
      for (let index = 0; index < samples.length; index++) {
        const at = Math.min(PEAKS - 1, Math.floor(index / step)), height = Math.abs(samples[index]);
        if (height > found[at]) found[at] = height;
      }
    }
    const loudest = Math.max(0.02, ...found);
    return found.map(peak => peak / loudest);
  };

  // The blocks are not all as wide as they are long, so moments and places follow the blocks.
  const blocks = () => {
    let time = 0;
    return film.shots.map((one, index) => {
      const item = find('.film').children[index], from = time - film.fadeOf(one);
      time = from + film.seconds(one);
      return {from, seconds: film.seconds(one), left: item.offsetLeft, width: item.offsetWidth};
    });
  };
  const leftOf = time => {
    const all = blocks(), one = all.findLast(each => each.from <= time) ?? all[0];
    return one.left + Math.min(1, Math.max(0, (time - one.from) / one.seconds)) * one.width;
  };
  const timeAt = left => {
    const all = blocks(), one = all.findLast(each => each.left <= left) ?? all[0];
    return one.from + Math.min(1, Math.max(0, (left - one.left) / one.width)) * one.seconds;
  };
  const drawWave = () => {
    const own = film.track, canvas = find('.film-lane canvas'), end = film.total();
    if (!film.shots.length || !find('.film').offsetWidth) return;
    const heard = Math.max(0, Math.min(length || end, end - own.start)), left = leftOf(own.start);
    const width = Math.max(24, leftOf(own.start + heard) - left), scale = devicePixelRatio || 1;
    canvas.style.cssText = `margin-left:${left}px;width:${width}px`;
    const times = {start: own.start.toFixed(1), end: (own.start + heard).toFixed(1)};
    canvas.setAttribute('aria-label', fill(words().track_of, times));
    Object.assign(canvas, {width: Math.round(width * scale), height: Math.round(44 * scale)});
    const pen = canvas.getContext('2d');
    pen.fillStyle = getComputedStyle(canvas).color;
    const bars = Math.floor(width / 3);
    for (let bar = 0; bar < bars; bar++) {
      const time = bar / bars * heard, at = length ? Math.min(PEAKS - 1, Math.floor(time / length * PEAKS)) : 0;
      const fade = own.fade ? Math.min(1, time / own.fade, (heard - time) / own.fade) : 1;
      const tall = Math.max(2, (peaks ? peaks[at] : 0.3) * fade * Math.min(1, own.volume) * 40) * scale;
      pen.fillRect(3 * bar * scale, (canvas.height - tall) / 2, 2 * scale, tall);
    }
  };
  new ResizeObserver(() => { if (film.track) drawWave(); }).observe(element);

  element.addEventListener('change', event => {
    if (event.target.name !== 'track' || !event.target.files.length) return;
    take(event.target.files[0]);
    event.target.value = '';
  });
  element.addEventListener('input', event => {
    const name = {track_start: 'start', track_fade: 'fade', track_volume: 'volume'}[event.target.name];
    if (!name || !film.track) return;
    const most = {start: Math.max(0, film.total() - 0.1), fade: 30, volume: 2}[name];
    film.track[name] = Math.min(most, Math.max(0, Number(event.target.value) || 0));
    film.change();
  });
  element.addEventListener('click', event => {
    if (!event.target.closest('[data-shot=silence]')) return;
    film.track = null;
    load();
    film.change();
  });
  let held = null;
  element.addEventListener('pointerdown', event => {
    if (!event.target.matches('.film-lane canvas')) return;
    capture(event.target, event);
    held = {x: event.clientX, left: leftOf(film.track.start)};
  });
  element.addEventListener('pointermove', event => {
    if (!held) return;
    const time = timeAt(held.left + event.clientX - held.x);
    film.track.start = Math.round(10 * Math.min(Math.max(0, time), Math.max(0, film.total() - 0.1))) / 10;
    show();
  });
  onRelease(() => {
    if (!held) return;
    held = null;
    film.change();
  });

  return {load, show};
})();
