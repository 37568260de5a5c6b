// The page's entry. Gradio runs strings of code, not modules, when it renders a component (`js_on_load`), when an event needs a value
// of the page (`js=`), and when the page is complete. These strings reach the modules only through `window.studio`.

import { followLeader, showAudibleVideo, startCompare, startLoadedComparison } from '../compare/compare.js';
import { act, startActions } from '../components/actions.js';
import { startDescriptions } from '../components/descriptions.js';
import { keepMenuOpen } from '../components/dom.js';
import { startMessage, startNote } from '../components/toast.js';
import { showPlace, startViews } from '../components/views.js';
import { startEdit } from '../edit/edit.js';
import { openInstant, startInstant } from '../form/instant.js';
import { startPanel, startPictureExamples } from '../form/panel.js';
import { recordingChanged, startRecording } from '../form/recording.js';
import { startMaxCharacters, startSentJob, startStoryboard } from '../form/storyboard.js';
import { form, startTyped } from '../form/typed.js';
import { startLibrary, startProjects } from '../library/library.js';
import { startLive } from '../live/live.js';
import { startNotice } from '../queue/notice.js';
import { showCount, startQueue } from '../queue/queue.js';
import { showStageTime, startPlayer } from '../stage/player.js';
import { showSound, startSound } from '../stage/sound.js';
import { startStage } from '../stage/stage.js';
import { startButtons } from './buttons.js';
import { drawView, startChanges, startPart } from './changes.js';
import { startFiles } from './files.js';
import { startKeys } from './keys.js';
import { startLanguage } from './language.js';
import { startTasks } from './tasks.js';
import { startTheme } from './theme.js';

/** The scripts of HTML components, by the names that Python passes to `start_script`.
 * @type {Record<string, (component: GradioComponent, events: readonly string[]) => void>} */
const STARTS = {
  act: startActions,
  edit: startEdit,
  film: startStoryboard,
  film_figures: startMaxCharacters,
  film_sent: startSentJob,
  instant: startInstant,
  live: startLive,
  message: startMessage,
  note: startNote,
  own_presets: component => keepMenuOpen(component),
  picture_examples: startPictureExamples,
  projects: startProjects,
  queue: startPart('queue'),
  stage: startStage,
  theme: startTheme,
  worker_status: startPart('worker-status'),
};

// Continuous updates use a timer. With animation frames, the browser would draw the page sixty times per second.
const TICK_MILLISECONDS = 40;
const tick = () => {
  if (document.hidden) return;
  showPlace();
  showStageTime();
  showSound();
  showAudibleVideo();
  startLoadedComparison();
  followLeader();
  drawView(performance.now());
  showCount();
};

const studio = {
  /** True when the page is complete. */
  isOpen: false,
  /** Runs when Gradio has rendered the whole page. */
  open: () => {
    startViews();
    startDescriptions();
    startChanges();
    openInstant();
    setInterval(tick, TICK_MILLISECONDS);
    studio.isOpen = true;
  },
  /** Runs when Gradio first renders a component. @param {string} name @param {GradioComponent} component @param {string[]} events */
  start: (name, component, events) => STARTS[name](component, events),
  act,
  form,
  recordingChanged,
};
/** @typedef {typeof studio} Studio */
window.studio = studio;

// Listeners on the document run in the order of registration. The storyboard's listener is registered later, so Generate waits
// for a recording before it sends a storyboard.
startButtons();
startTyped();
startRecording();
startKeys();
startFiles();
startLanguage();
startPanel();
startQueue();
startLibrary();
startPlayer();
startSound();
startCompare();
startNotice();
startTasks();
