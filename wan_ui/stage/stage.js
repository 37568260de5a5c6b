// The stage: shows each new video from its start. See `wan_ui/stage/handlers.py`.
import { find, findVideo, on, play } from '../components/dom.js';
import { hideDraft } from '../form/instant.js';

/** @param {GradioComponent} component @param {readonly string[]} actions */
export const startStage = ({ element, trigger, watch }, actions) => {
  on(element, 'click', '[data-action]', ({ dataset: { action = '' } }) => {
    if (actions.includes(action)) trigger(action);
  });
  let shown = '';
  let job = find('.stage', element)?.dataset.job;
  watch('value', () => {
    const stage = find('.stage', element);
    const video = findVideo('video', element);
    if (!stage || !video) return;
    const source = video.getAttribute('src') ?? '';
    if (source !== shown) {
      shown = source;
      video.muted = true;
      video.load();
      if (source) play(video);
    }
    if (stage.dataset.job !== job) {
      job = stage.dataset.job;
      hideDraft();
      window.scrollTo({ top: 0, behavior: 'smooth' });
    }
  });
};
