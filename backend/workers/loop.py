"""A worker's main loop: messages in, events out. The pipeline makes the videos."""

import contextlib
import functools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from backend.errors import KernelRefused, Stopped, StudioError, is_memory_short, one_line
from backend.files import folder_lock, is_disk_full
from backend.pipeline.live_events import stop_when
from backend.schemas.events import Cancelled, Compiling, Encoding, Event, Failed, Finished, Interrupted, Proposal, VideoResult
from backend.schemas.prompt_cues import Cue
from backend.schemas.request import example_request, find_preset
from backend.workers.channel import Channel
from backend.workers.exit_reasons import DEVICE_LOST
from backend.workers.failures import explain, is_device_lost, is_of_runtime, outcome_of
from backend.workers.messages import Alive, Cancel, Dying, Expect, Foresee, Keep, Leave, Message, Run, Say, Stop, decode, encode
from backend.workers.model import WorkerModel, is_from_file
from backend.workers.multihost_sync import Consensus, SingleProcess
from backend.workers.pipeline import Pipeline
from backend.workers.reports import Reports
from backend.workers.tasks import Task, Tasks
from backend.workers.watchdog import HEARTBEAT_SECONDS
from presets import Preset

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
KEEP_SECONDS = 5.0  # a job that is being made may take to keep what was done, when the engine is gone


class Closing(BaseException):
    """The engine is gone, and the worker ends; the job goes on with another one."""


class Worker:
    """Keeps one model in memory and runs one job after another.

    The main thread loads and generates; a second one reads messages, so that a cancel is seen at once. `end` ends the process.
    If `end` returns, as for a worker that shares its process, the worker stops its jobs and returns from `run`. A worker on
    several hosts is one of these on each, in `consensus`: all get the same jobs in the same order, and whatever else decides what
    runs next goes through that.
    """

    def __init__(
        self,
        channel: Channel,
        import_pipeline: Callable[[], Pipeline],
        model: str | None,
        end: Callable[[int], object] = os._exit,
        consensus: Consensus | None = None,
    ):
        self._channel, self._end = channel, end
        self._consensus = consensus or SingleProcess()
        self._reports = Reports(channel, self._consensus)
        self._tasks = Tasks()
        self._model = WorkerModel(import_pipeline, model, self._reports, self._consensus, self._tasks)
        self._wishes: queue.SimpleQueue[Expect | Foresee | Keep] = queue.SimpleQueue()  # for kept models
        self._trouble = ""  # what went wrong last
        self._searching: threading.Thread | None = None  # for what would fit
        self._is_stopping = threading.Event()
        self._is_idle = threading.Event()  # no job is being made
        self._is_idle.set()

    def run(self, preset: Preset, warm_up: bool) -> None:
        """Loads, warms up, then serves jobs until the engine sends `Stop` or is gone."""
        threading.Thread(target=self._read, name="messages", daemon=True).start()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        self._prepare(preset, warm_up)
        while (task := self._tasks.next()) is not None:
            self._serve(task)

    def _beat(self) -> None:
        """Shows that this process does not stand still."""
        while self._channel.send(Alive()) and not self._is_stopping.wait(HEARTBEAT_SECONDS):
            pass

    def _read(self) -> None:
        """Handles messages until the engine sends `Stop` or is gone; then ends the worker. A job that is being made is given
        `KEEP_SECONDS` to end its step and to keep what was done."""
        code = 0
        try:
            for message in self._channel.receive():
                if isinstance(message, Stop):
                    break
                self._handle(message)
        except Exception:
            logger.exception("A message could not be handled")
            code = 1
        self._is_stopping.set()
        self._is_idle.wait(KEEP_SECONDS)
        self._leave(code)
        self._tasks.give_up()

    def _handle(self, message: Message) -> None:
        if self._consensus.take(message):
            return
        match message:
            case Leave():
                self._leave(0)
            case Run():
                self._tasks.add(Task(job_id=message.job_id, request=message.request, folder=message.folder))
            case Cancel(job_id=job_id):
                if self._tasks.cancel(job_id):
                    self._reports.event(job_id, Cancelled(None))
            case Say(job_id=job_id, cue=cue):
                if task := self._tasks.find(job_id):
                    task.cues.put(cue)
            case Expect() | Foresee() | Keep():
                self._wishes.put(message)
                if self._consensus.is_alone:  # beside what is being made, and not in the way of the next message
                    threading.Thread(target=self._follow_wishes, name="wishes", daemon=True).start()

    def _follow_wishes(self) -> None:
        """Does what was asked for kept models; several hosts do so between two jobs, all alike."""
        new = [encode(self._wishes.get()) for _ in range(self._wishes.qsize())]
        for message in map(decode, self._consensus.decide("wishes", new)):
            match message:
                case Keep(model=model, how=how):
                    self._model.keep(model, how)
                case Expect(models=models, preset=preset):
                    self._model.expect(models, preset)
                case Foresee(request=request):
                    self._model.prepare_for(request)

    def _leave(self, code: int) -> None:
        """Ends the process because it is asked to."""
        if self._model.pipeline is not None:
            self._model.pipeline.excuse()
        self._end(code)

    def _prepare(self, preset: Preset, warm_up: bool) -> None:
        """Gets ready for the first job. A failure is only reported: it comes again, with the first job. Cancelling a job does not
        stop this, because the operator has asked for it."""
        outcome = "prepared"
        try:
            self._model.load(preset, request=example_request(preset) if warm_up else None)
            if warm_up:
                self._model.warm_up(preset)
            self._model.report_facts()
        except Exception as error:
            logger.exception("The model could not be prepared")
            self._explain(error)
            outcome = outcome_of(error)
        self._reports.gather(outcome)
        self._report_rest()

    def _serve(self, task: Task) -> None:
        if not self._consensus.is_alone:
            self._follow_wishes()
        try:
            with folder_lock(task.folder):
                final, outcome = self._result_of(task)
        except Closing:
            return
        if isinstance(final, Finished):
            self._model.rates = final.result.rates
        if self._model.pipeline is not None:
            self._model.report_facts()
        if final is not None:
            self._reports.event(task.job_id, final)
        self._tasks.end(task)
        self._reports.gather(outcome)
        self._report_rest()

    def _result_of(self, task: Task) -> tuple[Event | None, str]:
        """Runs one job and returns its final event, to be sent; None if one was sent when it was cancelled, before it began. And
        what all hosts gather for then."""
        try:
            if task.request.finished_video:
                self._model.start()  # no model is needed, but that which makes it larger
            else:
                self._model.load(find_preset(task.request.preset), lambda: self._is_given_up(task), task.request)
            return (self._make_on_what_serves(task) if self._begin(task) else None), "made"
        except Stopped:
            return None, "made"
        except Exception as error:
            logger.exception("Job %s failed", task.job_id)
            outcome = outcome_of(error)
            if is_disk_full(error):
                return Interrupted(cause="The disk is full", fix="Make room", by="disk"), outcome
            if is_device_lost(error) or (not self._consensus.is_alone and is_of_runtime(error)):
                self._channel.send(Dying(reason=f"A device was lost ({one_line(str(error))[:200]})"))
                self._end(DEVICE_LOST)
            failed, is_short = self._explain(error), is_memory_short(error) and not isinstance(error, StudioError)
        may_propose = is_short and self._consensus.is_alone and not task.request.finished_video
        return (self._with_proposals(failed, task) if may_propose else failed), outcome

    def _make_on_what_serves(self, task: Task) -> Event:
        """As `_make`; where a kernel is refused, on the model laid out anew without it, each once at most; and where memory is
        short beside kept models, without those."""
        while True:
            try:
                return self._make(task, loaded=time.monotonic())
            except KernelRefused as refused:
                try:
                    self._model.load_again(refused, find_preset(task.request.preset), lambda: self._is_given_up(task))
                except Stopped:
                    return Cancelled(None)
                self._reports.status("busy", "Generating a video")
            except Exception as error:
                if isinstance(error, StudioError) or not is_memory_short(error) or not self._model.drop_idle():
                    raise
                logger.warning("Memory is short (%s); it goes on without the other kept models", one_line(str(error))[:200])

    def _make(self, task: Task, loaded: float) -> Event:
        """Makes the video and returns its final event. Raises: Closing, after what was done is kept."""
        self._is_idle.clear()
        try:
            given = task.request, self._model.loaded, task.folder, functools.partial(self._is_cancelled, task)
            self._model.fetch_next()
            pipeline, new_cues = self._model.started, functools.partial(self._new_cues, task)
            video = pipeline.live(*given, new_cues) if task.request.is_open else pipeline.generate(*given)
            with contextlib.closing(video) as events:
                for event in events:
                    if isinstance(event, Encoding):
                        self._model.add_warm(task.request)
                    if event.is_final:
                        return _with_seconds(event, load=loaded - task.arrived, total=time.monotonic() - task.arrived)
                    self._reports.event(task.job_id, event)
                    if isinstance(event, Compiling) and not is_from_file(event) and self._is_cancelled(task):
                        return Cancelled(None)  # there is nothing to keep yet, and compiling may take minutes
                    if self._is_stopping.is_set():
                        raise Closing
            return Failed("The pipeline ended without a result", "This is a bug: please report it")
        finally:
            self._is_idle.set()

    def _is_cancelled(self, task: Task) -> bool:
        return self._consensus.decide("cancelled", task.is_cancelled.is_set())

    def _new_cues(self, task: Task) -> list[Cue]:
        return [Cue(**cue) for cue in self._consensus.decide("said", [cue.model_dump() for cue in task.new_cues()])]

    def _is_given_up(self, task: Task) -> bool:
        """Whether the model that is being loaded is no longer needed: this task was cancelled, and no other needs that model."""
        if not task.is_cancelled.is_set():
            return False
        models = [self._model.shape(other.request).model for other in self._tasks.wanted()]
        return self._model.shape(task.request).model not in models

    def _explain(self, error: Exception) -> Failed:
        """The error explained, and kept for the status."""
        failed = explain(error)
        self._trouble = f"{failed.cause}; {failed.fix}"
        return failed

    def _with_proposals(self, failed: Failed, task: Task) -> Failed:
        """The failure with what would fit. Called when the error itself is gone, which would keep its arrays on the devices. If
        the weights alone found no room, a shorter video would find none either."""
        if self._model.loaded is None:
            return Failed("There is not enough memory for this model", "Take a model that needs less, or more chips: see Models")
        if self._searching is not None and self._searching.is_alive():  # it was left behind by a video that was stopped
            return failed
        self._reports.status("busy", "Searching for settings that fit")
        found: queue.SimpleQueue[tuple[Proposal, ...]] = queue.SimpleQueue()
        self._searching = threading.Thread(target=self._search_proposals, args=(task, found), name="would-fit", daemon=True)
        self._searching.start()
        while self._searching.is_alive() and not task.is_cancelled.is_set():  # one compilation may take minutes
            self._searching.join(_LOOK_SECONDS)
        proposals = () if found.empty() else found.get()
        if not proposals:
            return failed
        fix = f"It would fit at {', or at '.join(map(str, proposals))}"
        return Failed(failed.cause, fix, proposals)

    def _search_proposals(self, task: Task, found: "queue.SimpleQueue[tuple[Proposal, ...]]") -> None:
        """Puts what would fit into `found`; ends at the next compilation after the video was stopped."""
        try:
            tell = stop_when(task.is_cancelled.is_set, functools.partial(self._reports.event, task.job_id))
            found.put(self._model.started.would_fit(task.request, tell))
        except Stopped:
            pass
        except Exception:
            logger.exception("What would fit could not be found")

    def _begin(self, task: Task) -> bool:
        if self._consensus.decide("begin", not self._tasks.begin(task)):
            return False
        self._reports.status("busy", "Generating a video")
        return True

    def _report_rest(self) -> None:
        """Sends the status of the idle worker; "failed" only if no request can be served."""
        if self._model.loaded is not None:
            self._reports.status("ready", "Ready")
        elif self._model.is_of_use:
            self._reports.status("ready", "Ready, with no model loaded")
        else:
            self._reports.status("failed", self._trouble)


def _with_seconds(event: Event, **seconds: float) -> Event:
    """The final event with these seconds added to its result's; the pipeline's own measurements stay."""
    result = getattr(event, "result", None)
    if not isinstance(event, Finished | Cancelled) or not isinstance(result, VideoResult):
        return event
    return replace(event, result=replace(result, seconds={**seconds, **result.seconds, "total": seconds["total"]}))
