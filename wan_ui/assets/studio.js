// The page's own script: views, keys, buttons that carry data-act, dropping files, players; sound.js and notice.js follow. Talks to the server
// only through window.studioAct and window.studioDrop, which wan_ui/parts/buttons.py provides. Listens on the document, because
// panels are redrawn.

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const isShown = element => element && element.offsetParent !== null;
// In the text that is there: a new one makes the browser look at all styles around it, which takes milliseconds (measured).
const showText = (element, text) => {
  if (element.textContent === text) return;
  const only = element.childNodes.length === 1 ? element.firstChild : null;
  only?.nodeType === Node.TEXT_NODE ? only.data = text : element.textContent = text;
};
const isTyping = target => target.closest?.('textarea, select, [contenteditable], input:not([type=range]):not([type=checkbox])');
const act = (group, what, data = {}) => window.studioAct?.(group, {what, ...data});

// Views. The header lists them; a column says in its classes in which of them it is seen, everywhere (in-KEY) and on a phone
// (phone-KEY). Which one is open, and whether the queue is, stands in attributes of the body; the style sheet shows it by the
// classes and the attribute that are set here (Gradio puts its own selector before each of our rules, so that none can begin
// at the body).
const views = () => $$('#views [data-view]').map(button => button.dataset.view);
const look = name => act(`look_${name}`, 'look');
window.studioView = name => {
  if (name === 'stage') name = isShown($('.stage')) ? document.body.dataset.view : 'create';
  if (!views().includes(name)) return;
  document.body.dataset.view = name;
  showPlace();
  look(name);
  if (!isShown($('.stage'))) $('.stage video')?.pause();
};
const showPlace = () => {
  const {queue} = document.body.dataset, view = document.body.dataset.view ||= views()[0] ?? '', workspace = $('#workspace');
  if (!view) return;
  if (workspace && workspace.dataset.queue !== queue) workspace.dataset.queue = queue;
  for (const {classList} of $$('#workspace > .place')) {
    classList.toggle('shown', classList.contains(`in-${view}`));
    classList.toggle('shown-on-phone', classList.contains(`phone-${view}`));
  }
  const current = $('#views [aria-current=true]');
  if (current?.dataset.view === view) return;
  for (const button of $$('#views button')) button.setAttribute('aria-current', button.dataset.view === view);
  $('#views [aria-current=true]')?.scrollIntoView({ block: 'nearest', inline: 'center' });  // a phone shows some of the views only
};
const showQueue = isOpen => {
  document.body.dataset.queue = isOpen ? 'open' : 'closed';
  localStorage.setItem('studio-queue', document.body.dataset.queue);
  showPlace();
};
document.body.dataset.queue = innerWidth < 1200 ? 'closed' : localStorage.getItem('studio-queue') || 'open';
setInterval(() => { if (!document.hidden) look(document.body.dataset.view); }, 4000);
setInterval(() => { if (!document.hidden && isShown($('[data-busy=true]'))) look(document.body.dataset.view); }, 1000);

const say = text => {
  const note = $('#message .message');
  if (!note) return;
  ($('span', note) || note).textContent = text;
  note.classList.add('shown');
  setTimeout(() => note.classList.remove('shown'), 4000);
};

// Every button of every panel.
document.addEventListener('click', event => {
  const target = event.target;
  const view = target.closest('button[data-view]');
  if (view) return window.studioView(view.dataset.view);
  if (target.closest('#queue-toggle')) return showQueue(document.body.dataset.queue !== 'open');
  if (target.closest('#help-toggle')) return $('#help').showModal();
  const copied = target.closest('[data-copy-text]');
  if (copied) {
    navigator.clipboard?.writeText(copied.dataset.copyText).then(() => say(copied.dataset.said));
    return;
  }
  for (const menu of $$('details.popover[open]')) if (!menu.contains(target)) menu.open = false;
  const button = target.closest('[data-act]');
  if (!button) return;
  const [group, what] = button.dataset.act.split(':');
  const {job = '', value = ''} = button.dataset;
  if (what === 'star') button.dataset.on = button.dataset.on === 'true' ? 'false' : 'true';
  if (group === 'choose' && what === 'choose' && event.detail === 0) button.focus();
  if (button.closest('details.popover') && ['prompt', 'load', 'link', 'use'].includes(what)) button.closest('details').open = false;
  const field = {own: '#own-name', project: '#project-name'}[group];  // a name that is typed beside the button
  act(group, what, {job: field ? $(field)?.value ?? '' : job, value});
});

// Fields of panels, which say their change.
document.addEventListener('change', event => {
  const field = event.target.closest('[data-change]');
  if (!field) return;
  const [group, what] = field.dataset.change.split(':');
  act(group, what, {job: field.dataset.job, value: field.value});
});

// A project from a file.
document.addEventListener('change', async event => {
  if (event.target.id !== 'project-file' || !event.target.files.length) return;
  const [file] = event.target.files, {large} = event.target.dataset;
  event.target.value = '';
  window.studioProject(file).catch(() => say(large));
});

// The table of many videos, which the button at the prompt shows and hides; it may also come from a file.
document.addEventListener('click', event => {
  const button = event.target.closest('.many-toggle');
  if (!button) return;
  const isShown = $('#many').classList.toggle('shown');
  button.setAttribute('aria-expanded', isShown);
  if (isShown) $('#many-table textarea').focus();
});
document.addEventListener('change', async event => {
  if (event.target.id !== 'many-file' || !event.target.files.length) return;
  const text = await event.target.files[0].text();
  event.target.value = '';
  act('many', 'file', {value: text.slice(0, 200000)});
});

// Presets from a file.
document.addEventListener('change', async event => {
  if (event.target.id !== 'own-file' || !event.target.files.length) return;
  act('own', 'import', {value: (await event.target.files[0].text()).slice(0, 320000)});
  event.target.value = '';
});

// Each press of a button that makes a video counts, also while the one before is being answered. A double click is one press, and
// so is a key that is held down (below).
const MAKES = '#generate, [data-shot=alone]';
document.addEventListener('click', event => {
  if (event.detail > 1 && event.target.closest?.(MAKES)) event.stopImmediatePropagation();
}, true);

// What has been typed since a preset was chosen, by the control's name (see wan_ui/form/handlers.py). Gradio tells of it a moment
// later, when an answer may have been drawn over it; so the field itself is read first.
const typed = window.studioTyped = new Map(), readFirst = new Set();
document.addEventListener('input', event => {
  const name = event.target.closest('.block[id]')?.id.replaceAll('-', '_');
  if (!name || !event.target.matches('input[type=number], textarea') || event.target.value === '') return;
  readFirst.add(name);
  typed.set(name, event.target.type === 'number' ? Number(event.target.value) : event.target.value);
}, true);
window.studioNoteTyped = (name, value) => {
  if (!readFirst.delete(name)) typed.set(name, value);
};

// Keys. Nothing here takes a key away from a field that is being typed in, but Ctrl+Enter and Escape.
const press = selector => {
  const button = $(selector);
  if (!isShown(button) || button.disabled) return false;
  button.click();
  return true;
};
document.addEventListener('keydown', event => {
  const isCtrlEnter = event.key === 'Enter' && (event.ctrlKey || event.metaKey);
  if (event.repeat && (isCtrlEnter || event.key === 'Enter' && event.target.closest(MAKES))) {
    event.preventDefault();
  } else if (isCtrlEnter) {
    if (press('.view-column.shown button.primary') || press('#generate')) event.preventDefault();
  } else if (event.key === 'Escape') {
    const open = $$('details.popover[open]');
    for (const menu of open) menu.open = false;
    if (!open.length && !$('dialog[open]') && press('#stop')) event.preventDefault();
  } else if (event.altKey && /^[1-9]$/.test(event.key) && views()[Number(event.key) - 1]) {
    event.preventDefault();
    window.studioView(views()[Number(event.key) - 1]);
  } else if (event.altKey && event.key.toLowerCase() === 'q') {
    event.preventDefault();
    showQueue(document.body.dataset.queue !== 'open');
  } else if (!isTyping(event.target) && !event.ctrlKey && !event.metaKey && !event.altKey) {
    plainKey(event);
  }
});
const plainKey = event => {
  const card = event.target.closest?.('#library-grid li');
  const moves = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: 'up', ArrowDown: 'down'};
  if (event.key === '?') $('#help').showModal();
  else if (isShown($('#library-grid')) && event.key in moves && event.target.type !== 'range') {
    event.preventDefault();
    moveInLibrary(card, moves[event.key]);
  } else if (card && event.key === 's') press(`#library-grid li[data-job="${card.dataset.job}"] [data-act="queue:star"]`);
  else if (card && event.key === 'c') act('compare', 'add', {job: card.dataset.job});
  else if (card && event.key === 'Delete') act('queue', 'delete', {job: card.dataset.job});
  else if (event.key === ',' || event.key === '.') step(event.key === ',' ? -1 : 1);
  else if (event.key === 'm') toggleSound();
  else if (/^[1-4]$/.test(event.key) && isShown($('.compare'))) hear(Number(event.key));
  else if (event.key === ' ' && !event.target.closest?.('button, a, summary, video, input')) {
    event.preventDefault();
    isShown($('.compare')) ? playTogether() : toggle($('.stage video'));
  }
};
const moveInLibrary = (card, move) => {
  const cards = $$('#library-grid li');
  if (!cards.length) return;
  let place = card ? cards.indexOf(card) : -1;
  const columns = cards.filter(other => other.offsetTop === cards[0].offsetTop).length;
  place += move === 'up' ? -columns : move === 'down' ? columns : move;
  const next = cards[Math.min(Math.max(place, 0), cards.length - 1)];
  $('.card', next).focus();
  next.scrollIntoView({block: 'nearest'});
};

// Files: dropped anywhere or pasted. What falls on a field for files is left to that field; in Edit a file is its clip.
const OWN_FIELDS = '#input-image, #last-image, .takes-files';
const dropped = file => (isShown($('.edit')) && window.studioClip ? window.studioClip : window.studioDrop)(file);
const isFile = event => [...(event.dataTransfer?.types ?? [])].includes('Files');
const isOurs = file => /^(image|video)\//.test(file.type) || /\.(mp4|m4v|mov|webm)$/i.test(file.name);
const zone = isHidden => {
  const shown = $('#drop-zone');
  if (!shown) return;
  shown.hidden = isHidden;
  const isClip = isShown($('.edit'));
  for (const words of $$('p', shown)) words.hidden = words.matches('.clip') !== !!isClip;
};
addEventListener('dragover', event => {
  if (!isFile(event) || event.target.closest?.(OWN_FIELDS)) return zone(true);
  event.preventDefault();
  zone(false);
});
addEventListener('dragleave', event => { if (!event.relatedTarget) zone(true); });
addEventListener('drop', event => {
  zone(true);
  if (!isFile(event) || event.target.closest?.(OWN_FIELDS)) return;
  const file = [...event.dataTransfer.files].find(isOurs);
  event.preventDefault();
  if (file) dropped(file);
});
document.addEventListener('paste', event => {
  const file = [...(event.clipboardData?.files ?? [])].find(isOurs);
  if (file) dropped(file);
});

// The queue: an item that is dragged onto another takes its place.
let dragged = '';
document.addEventListener('dragstart', event => {
  const item = event.target.closest?.('#queue li[draggable]');
  dragged = item?.dataset.job ?? '';
  if (item) event.dataTransfer.setData('text/plain', '');
});
document.addEventListener('dragover', event => {
  if (dragged && event.target.closest?.('#queue li[draggable]')) event.preventDefault();
});
document.addEventListener('drop', event => {
  const item = event.target.closest?.('#queue li[draggable]');
  if (!dragged || !item) return;
  event.preventDefault();
  if (item.dataset.job !== dragged) act('queue', 'move', {job: dragged, value: item.dataset.job});
  dragged = '';
});

// The library: a video plays under the pointer, and under the keyboard's focus.
const playCard = event => {
  const video = $('video', event.target.closest?.('#library-grid li') ?? document.createElement('i'));
  if (!video || video.getAttribute('src')) return;
  video.src = video.dataset.src;
  video.play().catch(() => {});
};
const restCard = event => {
  const card = event.target.closest?.('#library-grid li');
  if (!card || card.contains(event.relatedTarget)) return;
  $('video', card).removeAttribute('src');
  $('video', card).load();
};
for (const kind of ['pointerover', 'focusin']) document.addEventListener(kind, playCard);
for (const kind of ['pointerout', 'focusout']) document.addEventListener(kind, restCard);

// The stage's player.
const toggle = video => video && (video.paused ? video.play().catch(() => {}) : video.pause());
const seek = (video, frame, fps) => { video.currentTime = (frame + 0.5) / fps; };
const frameOf = (video, fps, frames) => Math.min(frames - 1, Math.floor(video.currentTime * fps + 0.001));
const step = by => {
  if (isShown($('.compare'))) return stepTogether(by);
  const player = $('.stage .player'), video = $('.stage video');
  if (!isShown(player)) return;
  const {fps, frames} = player.dataset;
  video.pause();
  seek(video, (frameOf(video, Number(fps), Number(frames)) + by + Number(frames)) % Number(frames), Number(fps));
};
document.addEventListener('click', event => {
  const name = event.target.closest('[data-player]')?.dataset.player, video = $('.stage video');
  if (name === 'back' || name === 'forward') step(name === 'back' ? -1 : 1);
  if (name === 'play' || event.target.matches('.stage video')) toggle(video);
  if (name === 'loop') {
    video.loop = !video.loop;
    event.target.closest('button').setAttribute('aria-pressed', video.loop);
  }
});
document.addEventListener('input', event => {
  if (event.target.dataset.player !== 'scrub') return;
  $('.stage video').pause();
  seek($('.stage video'), Number(event.target.value), Number(event.target.closest('.player').dataset.fps));
});
const showStageTime = () => {
  const player = $('.stage .player'), video = $('.stage video');
  if (!isShown(player)) return;
  const frames = Number(player.dataset.frames), frame = frameOf(video, Number(player.dataset.fps), frames);
  const scrub = $('[data-player=scrub]', player);
  if (scrub !== document.activeElement || !video.paused) scrub.value = frame;
  showText($('output', player), `${frame + 1} / ${frames}`);
  showPlaying(player, !video.paused);
};
const showPlaying = (bar, isPlaying) => {
  const button = $('.play-button', bar), words = isPlaying ? button.dataset.pauseWords : button.dataset.words;
  bar.dataset.playing = isPlaying;
  if (button.title !== words) button.title = button.ariaLabel = words;
};

// Compare: all videos follow the longest, the leader. Where one drifts by more than a frame it is put right. A video that is
// heard sets the pace instead, so that its sound has no gaps. It starts a little later than the silent ones (0.04 s, measured),
// so these go slower or faster for a moment: putting them right at each loop would be seen.
const together = () => $$('.compare figure video').filter(video => video.getAttribute('src'));
const leader = () => {
  const longest = together().reduce((best, video) => (video.duration || 0) > (best?.duration || 0) ? video : best, null);
  const loud = heardVideo();
  return loud?.duration > longest?.duration - 0.05 ? loud : longest;  // of those that are about as long, the one that is heard
};
const playTogether = () => {
  const lead = leader(), isPaused = lead?.paused;
  for (const video of together()) isPaused ? video.play().catch(() => {}) : video.pause();
};
const seekTogether = seconds => {
  for (const video of together()) video.currentTime = Math.min(seconds, Math.max(0, (video.duration || 0) - 0.01));
};
const stepTogether = by => {
  const lead = leader();
  if (!lead) return;
  const fps = Number(lead.closest('figure').dataset.fps);
  for (const video of together()) video.pause();
  seekTogether((Math.floor(lead.currentTime * fps + 0.001) + by + 0.5) / fps);
};
const followLeader = () => {
  const section = $('.compare'), lead = leader();
  if (!isShown(section) || !lead?.duration) return;
  const fps = Number(lead.closest('figure').dataset.fps) || 16;
  if (lead.ended) {
    seekTogether(0);
    for (const video of together()) video.play().catch(() => {});
  }
  const loud = heardVideo(), pace = loud && !loud.paused && !loud.ended && !loud.seeking ? loud : lead;
  for (const video of together()) {
    const wanted = Math.min(pace.currentTime, (video.duration || 0) - 0.01);
    const gap = video === pace ? 0 : wanted - video.currentTime;
    const isLed = pace === loud, rate = isLed && Math.abs(gap) > 0.01 ? 1 + Math.max(-0.25, Math.min(0.25, 4 * gap)) : 1;
    if (video.playbackRate !== rate) video.playbackRate = rate;
    if (!video.seeking && Math.abs(gap) > (isLed ? 3 : 1) / fps) video.currentTime = Math.max(0, wanted);
    if (video !== lead && video.paused !== lead.paused && !video.ended) lead.paused ? video.pause() : video.play().catch(() => {});
  }
  const scrub = $('[data-compare=scrub]', section);
  if (scrub !== document.activeElement || !lead.paused) scrub.value = Math.round(1000 * lead.currentTime / lead.duration);
  showText($('.together output', section), `${lead.currentTime.toFixed(2)} s`);
  showPlaying($('.together', section), !lead.paused);
  wipe(section);
};
const wiping = {isOn: false, left: 0, right: 1, edge: 50};
const wipe = section => {
  const figures = $$('figure', section);
  const isOn = wiping.isOn && figures.length > 1;
  section.dataset.wipe = isOn;
  figures.forEach((figure, place) => {
    const side = place === wiping.left ? 'left' : place === wiping.right ? 'right' : '';
    figure.dataset.side = isOn ? side || 'none' : '';
  });
  section.style.setProperty('--edge', `${wiping.edge}%`);
  for (const [name, value] of [['left', wiping.left], ['right', wiping.right]]) {
    const select = $(`[data-compare=${name}]`, section);
    select.hidden = !isOn;
    if (select !== document.activeElement) select.value = String(value);
  }
  $('.edge', section).hidden = !isOn;
  $('[data-compare=wipe]', section).checked = wiping.isOn;
};
document.addEventListener('click', event => {
  if (event.target.closest('[data-compare=play]') || event.target.matches('.compare figure video')) playTogether();
});
document.addEventListener('input', event => {
  const {target} = event, name = target.dataset.compare;
  if (name === 'scrub') {
    for (const video of together()) video.pause();
    seekTogether(Number(target.value) / 1000 * (leader()?.duration || 0));
  } else if (name === 'wipe') wiping.isOn = target.checked;
  else if (name === 'left' || name === 'right') wiping[name] = Number(target.value);
  else if (target.matches('.compare .edge')) wiping.edge = Number(target.value);
});
let compared = '';
const startCompared = () => {
  const section = $('.compare');
  const state = `${section?.dataset.comparison} ${section?.dataset.done}`;
  if (!isShown(section) || state === compared || !together().every(video => video.readyState >= 2)) return;
  compared = state;
  if (!section.dataset.comparison) return;
  if (section.dataset.original === 'true') Object.assign(wiping, {isOn: true, left: 0, right: 1});
  seekTogether(0);
  for (const video of together()) video.play().catch(() => {});
};

// The server tells what has changed: the status and the queue as they look now, and a count by which a view that may show
// something old is drawn anew. One tab of a browser keeps the stream and passes everything on to the others.
const VIEW_MILLISECONDS = 1500;
const told = window.studioTold ??= {};  // by element id: shows that part's HTML
const tabs = new BroadcastChannel('studio-changes');
const AGAIN_MILLISECONDS = 5000, SILENT_MILLISECONDS = 40000;
let changes = null, drawn = null, drawnAt = 0, lastNews = performance.now(), stream = null;
const latest = {};  // the parts as last told, for tabs that come later
const take = ({count, parts}) => {
  [changes, lastNews] = [count, performance.now()];
  Object.assign(latest, parts);
  for (const [name, html] of Object.entries(parts)) told[name]?.(html);
  if (parts.queue) window.studioQueueNews(parts.queue);
};
const stillThere = () => { lastNews = performance.now(); };
const listen = () => {
  stream?.close();
  stillThere();
  tabs.postMessage('still');  // the others wait meanwhile
  stream = new EventSource('studio/changes');
  stream.onmessage = event => {
    const news = JSON.parse(event.data);
    take(news);
    tabs.postMessage(news);
  };
  stream.addEventListener('still', () => {
    stillThere();
    tabs.postMessage('still');
  });
  // A browser asks again by itself where the connection breaks, but not where it is refused, as by a proxy whose server restarts.
  stream.onerror = () => { if (stream.readyState === EventSource.CLOSED) lastNews = -Infinity; };
};
const leaveIt = () => {  // another tab listens now
  stream?.close();
  stream = null;
};
const listenAlone = options => {
  if (!navigator.locks) return listen();
  navigator.locks.request('studio-changes', options, () => new Promise(listen)).catch(leaveIt);
};
tabs.addEventListener('message', ({data}) => {
  if (data === 'all') return stream && tabs.postMessage({count: changes, parts: latest});
  data === 'still' ? stillThere() : take(data);
});
listenAlone({});
// Nor is a browser told that a network has gone, or the tab that listens. Where not even the word comes that all is as it was, the
// tab asks anew, itself if need be.
setInterval(() => {
  if (performance.now() - lastNews > SILENT_MILLISECONDS) stream ? listen() : listenAlone({steal: true});
}, AGAIN_MILLISECONDS);
let warm = null;
told.warm = html => {  // what is loaded and compiled: then the line at the Generate button says something else
  const word = html.replace(/^<!--.*?-->/, '');
  if (warm !== null && warm !== word && window.studioAct) act('estimate', 'estimate');
  warm = word;
};
const drawView = now => {
  if (changes === drawn || now - drawnAt < VIEW_MILLISECONDS || document.hidden || !window.studioAct) return;
  if (document.body.dataset.view === 'create') return;  // its stage is drawn by the job's own stream
  [drawn, drawnAt] = [changes, now];
  act('tick', 'tick');
};
tabs.postMessage('all');

// What is always kept up to date: players' positions, the number at the queue's button. By a timer, because a page that asks for
// every animation frame is drawn sixty times a second even if nothing on it changes.
const TICK_MILLISECONDS = 40;
const tick = () => {
  if (document.hidden) return;
  showPlace();
  showStageTime();
  showSound();
  showHeard();
  startCompared();
  followLeader();
  drawView(performance.now());
  const count = $('.queue')?.dataset.count ?? '0', badge = $('#queue-toggle .badge');
  if (badge && badge.textContent !== count) {
    badge.textContent = count;
    badge.hidden = count === '0';
  }
};
setInterval(tick, TICK_MILLISECONDS);
