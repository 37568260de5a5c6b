// A recording becomes the visitor's audio after its upload. Generate ends a running recording and waits for its upload. After a
// failed upload, the next press of Generate sends the recording again, because Gradio neither reports the failure nor retries.
import { find, findAll, get, isShown, onFirst } from '../components/dom.js';
import { showToast } from '../components/toast.js';

/** @type {'' | 'running' | 'awaited' | 'unsent'} */
let recording = '';
/** Decides whether a failed upload is sent again. @type {((isAgain: boolean) => void) | null} */
let upload = null;
const generate = () => get('#generate', HTMLButtonElement);

/** Handles Gradio's events of the microphone. @param {'begun' | 'sent' | 'dropped'} news */
export const recordingChanged = news => {
  const isAwaited = recording === 'awaited';
  recording = news === 'begun' ? 'running' : '';
  upload?.(false);
  if (!isAwaited) return;
  generate().removeAttribute('aria-busy');
  if (news === 'sent') setTimeout(() => generate().click());
};

/** Waits until the visitor decides whether a failed upload is sent again. */
const isSentAgain = () => {
  recording = 'unsent';
  generate().removeAttribute('aria-busy');
  showToast(find('#notice')?.dataset.unsent ?? '');
  return new Promise(decide => {
    upload = decide;
  });
};

export const startRecording = () => {
  const send = window.fetch.bind(window);
  /** @type {typeof fetch} */
  const sendRecording = async (address, options) => {
    for (;;) {
      /** @type {Response | Error} */
      const answer = await send(address, options).catch(error => error);
      if (answer instanceof Response && answer.ok) return answer;
      const isAgain = recording && (await isSentAgain());
      upload = null;
      if (isAgain) continue;
      if (answer instanceof Response) return answer;
      throw answer;
    }
  };
  window.fetch = (address, options) =>
    recording && /\/upload(\?|$)/.test(String(address)) ? sendRecording(address, options) : send(address, options);
  onFirst(document, 'click', '#generate', (button, event) => {
    if (!recording) return;
    if (recording === 'awaited') return recordingChanged('dropped'); // a second press generates without the recording
    event.stopImmediatePropagation();
    if (recording === 'unsent') upload?.(true);
    else findAll('#input-sound .stop-button, #input-sound .stop-button-paused').find(isShown)?.click();
    recording = 'awaited';
    button.setAttribute('aria-busy', 'true');
  });
};
