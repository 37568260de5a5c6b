// A recording is the visitor's sound only when it has been uploaded. Generate ends a recording that runs, and waits for its upload.
import { findAll, get, isShown, on } from '../parts/dom.js';

/** @type {'' | 'running' | 'awaited'} */
let recording = '';
const generate = () => get('#generate', HTMLButtonElement);

/** What Gradio reports of the microphone. @param {'begun' | 'sent' | 'dropped'} news */
export const recordingChanged = news => {
  const isAwaited = recording === 'awaited';
  recording = news === 'begun' ? 'running' : '';
  if (!isAwaited) return;
  generate().removeAttribute('aria-busy');
  if (news === 'sent') setTimeout(() => generate().click(), 0);
};

export const startRecording = () =>
  on(
    document,
    'click',
    (target, event) => {
      if (!target.closest('#generate') || !recording) return;
      if (recording === 'awaited') return recordingChanged('dropped');
      event.stopImmediatePropagation();
      recording = 'awaited';
      generate().setAttribute('aria-busy', 'true');
      findAll('#input-sound .stop-button, #input-sound .stop-button-paused').find(isShown)?.click();
    },
    true,
  );
