// The edit view's own script: the settings of the chosen model, what is asked for, and how long it will take. Gradio runs it
// once, with `element`, `watch`, `trigger` and `props`, after `parts/talk.js` and the view's others (brush, keys, ways, clip).
// Each of these is one object with a few entry points.
const edit = (() => {
  let usual = 0, filled = '';  // the usual length of the model that was chosen last; the settings that were shown last

  const limits = () => JSON.parse(find('#edit-preset')?.selectedOptions[0]?.dataset.limits ?? 'null');

  const sizeOption = ([width, height]) => new Option(`${width} × ${height}`, `${width}x${height}`);

  // The settings of the chosen model, and a way that it can go.
  const choosePreset = (way = ways.current()) => {
    const own = limits();
    if (!own) return;
    find('#edit-steps').value = own.steps;
    [find('#edit-guidance').value, find('#edit-guidance-low').value] = [own.guidance[0], own.guidance.at(-1)];
    find('#edit-guidance-low').closest('label').hidden = own.guidance.length < 2;
    find('#edit-negative').value = own.negative_prompt;
    find('#edit-drive-prompt').value = own.drive_prompt;
    const asPicture = own.ways.includes('animate') ? [new Option(words().as_picture, '')] : [];
    find('#edit-size').replaceChildren(...asPicture, ...own.sizes.map(sizeOption));
    chooseSize();
    showStrength();
    if (clip.frames === usual) clip.frames = usualLength();  // nobody has asked for another length
    usual = usualLength();
    ways.showLengths();
    ways.proposeMargins();
    ways.choose(own.ways.includes(way) ? way : own.ways[0]);
  };
  // As long as the clip where a clip drives the video, else the model's own length.
  const usualLength = () => {
    const own = limits(), isWhole = own.ways.includes('animate') && clip.facts;
    return isWhole ? Math.min(own.max_frames, Math.floor(clip.facts.seconds * own.fps)) : own.num_frames;
  };
  // The size whose shape is nearest to the clip's; of a figure's video that of its picture.
  const chooseSize = () => {
    const own = limits();
    if (!own || !clip.facts || own.ways.includes('animate')) return;
    const shape = ([width, height]) => Math.abs(Math.log(width / height * clip.facts.height / clip.facts.width));
    const best = own.sizes.reduce((found, size) => shape(size) < shape(found) - 1e-6 ? size : found);
    find('#edit-size').value = best.join('x');
  };
  const showStrength = () => {
    const strength = Number(find('#edit-strength').value), steps = Number(find('#edit-steps').value);
    const count = Math.min(Math.trunc(steps * strength), steps);
    find('.strength output').textContent = `${strength.toFixed(2)} · ${fill(words().steps, {count, steps})}`;
  };
  element.addEventListener('input', event => {
    if (['edit-strength', 'edit-steps'].includes(event.target.id)) showStrength();
    if (event.target.closest('.asked') && event.target.id !== 'edit-prompt') estimate();
  });
  element.addEventListener('change', event => {
    if (event.target.id === 'edit-preset') choosePreset();
    if (event.target.id === 'edit-file' && event.target.files.length) {
      clip.take(event.target.files[0]);
      event.target.value = '';
    }
  });

  const asked = mask => {
    const number = id => find(id).value === '' ? null : Number(find(id).value), own = limits();
    const chosen = find('#edit-size').value, [width, height] = chosen ? chosen.split('x').map(Number) : [null, null];
    const guidance = [number('#edit-guidance'), number('#edit-guidance-low')].slice(0, own.guidance.length);
    return {
      preset: find('#edit-preset').value, prompt: find('#edit-prompt').value, negative_prompt: find('#edit-negative').value,
      ...ways.asked(mask), width, height, steps: number('#edit-steps'), seed: number('#edit-seed'),
      guidance: guidance.includes(null) ? null : guidance, kept: kept(),
    };
  };
  // The settings of a loaded video that have no field here, unless they were taken away.
  const kept = () => Object.assign({}, ...[...element.querySelectorAll('[data-kept]')].map(one => JSON.parse(one.dataset.kept)));
  const make = async () => {
    const button = find('#edit-make');
    if (!ways.isWhole()) return;
    button.disabled = true;
    const mask = ways.current() === 'paint' ? await brush.path() : undefined;
    const given = mask === '' ? note(words().unpainted) : mask !== null && await send('', asked(mask));
    button.disabled = false;
    if (given) trigger('queued', {what: 'queued', job: given.job});
  };
  // How long it will take, asked again when nothing has changed for a moment.
  let waiting = 0;
  const estimate = () => {
    clearTimeout(waiting);
    waiting = setTimeout(async () => {
      const line = find('.edit-estimate');
      if (!line || !ways.isWhole()) return line?.replaceChildren();
      try {
        line.innerHTML = (await (await post('/estimate', asked())).json()).html ?? '';  // words of the server's own
      } catch { line.textContent = ''; }
    }, 300);
  };
  // The whole clip made larger, as it is: how long that will take, and the request for it.
  const larger = () => {
    const {path, width, height, seconds, fps} = clip.facts;
    return {way: 'upscale', clip: path, width, height, seconds, fps, upscale: find('#edit-larger').value};
  };
  const estimateLarger = async () => {
    const line = find('.larger output');
    if (!line || !clip.facts) return;
    try {
      line.innerHTML = (await (await post('/estimate', larger())).json()).html ?? '';  // words of the server's own
    } catch { line.textContent = ''; }
  };
  const makeLarger = async button => {
    button.disabled = true;
    const given = await send('', larger());
    button.disabled = false;
    if (given) trigger('queued', {what: 'queued', job: given.job});
  };
  element.addEventListener('change', event => { if (event.target.id === 'edit-larger') estimateLarger(); });
  element.addEventListener('click', event => {
    if (event.target.id === 'edit-upscale' && clip.facts) makeLarger(event.target);
    if (event.target.id === 'edit-make') make();
    const chip = event.target.closest('[data-kept]'), box = chip?.closest('.kept');
    chip?.remove();
    if (chip && !box.querySelector('[data-kept]')) box.remove();
    if (chip) estimate();
    if (event.target.id === 'edit-stop') event.target.dataset.job = document.querySelector('.stage')?.dataset.job ?? '';
    if (event.target.id === 'edit-player') event.target.paused ? event.target.play().catch(() => {}) : event.target.pause();
  });
  element.addEventListener('error', event => { if (event.target.id === 'edit-player') clip.cannotPlay(); }, true);
  window.studioClip = ways.take;

  // The page was opened, or an earlier video's settings are to be shown again.
  const open = () => {
    const text = find('.edit')?.dataset.fill ?? 'null', given = JSON.parse(text);
    if (!find('.edit')?.dataset.clip) clip.facts = null;  // the view is new
    choosePreset();
    if (!given || text === filled) return;
    filled = text;
    const picker = find('#edit-preset');
    if ([...picker.options].some(option => option.value === given.preset)) picker.value = given.preset;
    choosePreset();
    if (given.clip) clip.show(given.clip, addressOf(given.clip.path), /\.gif$/i.test(given.clip.name));
    const own = `${given.width}x${given.height}`;
    if (picker.value === given.preset && ![...find('#edit-size').options].some(option => option.value === own))
      find('#edit-size').add(sizeOption([given.width, given.height]));
    const strength = given.strength ?? find('#edit-strength').defaultValue;
    for (const [id, value] of [['prompt', given.prompt], ['negative', given.negative_prompt], ['strength', strength],
      ['steps', given.steps], ['seed', given.seed], ['guidance', given.guidance[0]], ['guidance-low', given.guidance.at(-1)],
      ['drive-prompt', given.drive_prompt || limits().drive_prompt], ['size', own]]) find(`#edit-${id}`).value = value;
    if (!find('#edit-size').value) chooseSize();  // another model, which does not offer it
    showStrength();
    ways.restore(given);
    if (given.clip) clip.part(given.start, Math.round((given.end - given.start) * limits().fps));
  };

  return {choosePreset, chooseSize, estimate, estimateLarger, limits, open, usualLength};
})();
watch('value', edit.open);
edit.open();
