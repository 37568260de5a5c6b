"""A worker's main loop: messages in, events out. The pipeline makes the videos."""

import contextlib
import functools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from backend.contract.cues import Cue
from backend.contract.events import (
    Cancelled,
    Compiling,
    Encoding,
    Event,
    Failed,
    Finished,
    Interrupted,
    Loading,
    Rate,
    VideoResult,
)
from backend.contract.request import GenerationRequest, example_request, find_preset
from backend.contract.shape import Shape
from backend.contract.worker import UnusedAccelerator, WorkerFacts, WorkerStatus
from backend.errors import DeviceError, KernelRefused, ModelError, Stopped, StudioError, is_memory_short, one_line
from backend.files import folder_lock, is_disk_full
from backend.pipeline.live_events import until
from backend.workers.channel import Channel
from backend.workers.consensus import Consensus, SingleProcess
from backend.workers.death import DEVICE_LOST
from backend.workers.failures import explain, is_device_lost, is_of_runtime, outcome_of
from backend.workers.messages import Alive, Cancel, Dying, Facts, JobEvent, Leave, Message, Run, Say, Status, Stop
from backend.workers.patience import HEARTBEAT_SECONDS
from backend.workers.pipeline import Pipeline
from presets import Preset

logger = logging.getLogger(__name__)

KEEP_SECONDS = 5.0  # a job that is being made may take to keep what was done, when the engine is gone


class Closing(BaseException):
    """The engine is gone, and the worker ends; the job goes on with another one."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A job in the worker. `arrived` is a monotonic time in seconds; `is_cancelled` may be set, and cues may be `said`, at any
    moment."""

    job_id: str
    request: GenerationRequest
    folder: Path
    arrived: float
    is_cancelled: threading.Event
    said: queue.SimpleQueue[Cue] = field(default_factory=queue.SimpleQueue)

    def hear(self) -> list[Cue]:
        """What was said since this was called last."""
        return [self.said.get() for _ in range(self.said.qsize())]


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
        self._channel, self._import_pipeline, self._model, self._end = channel, import_pipeline, model, end
        self._consensus = consensus or SingleProcess()
        self._status: WorkerStatus | None = None
        self._pipeline: Pipeline | None = None
        self._loaded: Any = None  # what the pipeline's `load` returned
        self._loaded_from: tuple[str, str] | None = None  # the checkpoint and the dtype
        self._is_of_use = False  # whether any request can be served, as far as is known
        self._trouble = ""  # what went wrong last
        self._rates: dict[str, Rate] = {}  # of the last video
        self._notice: UnusedAccelerator | None = None  # about an accelerator that is here and not used
        self._waiting: queue.Queue[Task | None] = queue.Queue()
        self._lock = threading.Lock()
        self._tasks: dict[str, Task] = {}  # not ended, by job id
        self._begun: str | None = None  # the job whose pipeline runs
        self._is_stopping = threading.Event()
        self._is_idle = threading.Event()  # no job is being made
        self._is_idle.set()
        self._warm: set[Shape] = set()  # whose programs are all compiled

    def run(self, preset: Preset, warm_up: bool) -> None:
        """Loads, warms up, then serves jobs until the engine sends "stop" or is gone."""
        threading.Thread(target=self._read, name="messages", daemon=True).start()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        self._prepare(preset, warm_up)
        while (task := self._waiting.get()) is not None:
            self._serve(task)

    def _beat(self) -> None:
        """Shows that this process does not stand still."""
        while self._channel.send(Alive()) and not self._is_stopping.wait(HEARTBEAT_SECONDS):
            pass

    def _read(self) -> None:
        """Handles messages until the engine sends "stop" or is gone; then ends the worker. A job that is being made is given
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
        with self._lock:
            for task in self._tasks.values():
                task.is_cancelled.set()
        self._waiting.put(None)

    def _handle(self, message: Message) -> None:
        if self._consensus.take(message):
            return
        if isinstance(message, Leave):
            self._leave(0)
        if isinstance(message, Run):
            task = Task(
                job_id=message.job_id,
                request=message.request,
                folder=message.folder,
                arrived=time.monotonic(),
                is_cancelled=threading.Event(),
            )
            with self._lock:
                self._tasks[task.job_id] = task
            self._waiting.put(task)
        elif isinstance(message, Cancel):
            self._cancel(message.job_id)
        elif isinstance(message, Say):
            with self._lock:
                task = self._tasks.get(message.job_id)
            if task is not None:
                task.said.put(message.cue)

    def _leave(self, code: int) -> None:
        """Ends the process because it is asked to."""
        if self._pipeline is not None:
            self._pipeline.excuse()
        self._end(code)

    def _cancel(self, job_id: str) -> None:
        """Ends a job at once if it has not begun; the pipeline ends one that has."""
        with self._lock:
            task = self._tasks.get(job_id)
            if task is not None:
                task.is_cancelled.set()
            is_waiting = task is not None and self._begun != job_id
        if is_waiting:
            self._send_event(job_id, Cancelled(None))

    def _prepare(self, preset: Preset, warm_up: bool) -> None:
        """Gets ready for the first job. A failure is only reported: it comes again, with the first job. Cancelling a job does not
        stop this, because the operator has asked for it."""
        outcome = "prepared"
        try:
            self._load(preset, request=example_request(preset) if warm_up else None)
            if warm_up:
                self._warm_up_on_what_serves(preset)
            self._send_facts()
        except Exception as error:
            logger.exception("The model could not be prepared")
            self._explain(error)
            outcome = outcome_of(error)
        self._gather(outcome)
        self._send_rest()

    def _gather(self, what: str, value: str = "") -> list[str]:
        """Waits for the other hosts, if there are any; meanwhile the state is said again, as a sign of progress."""
        return self._consensus.gather(what, value, lambda: self._channel.send(Status(status=self._status)))

    def _warm_up_on_what_serves(self, preset: Preset) -> None:
        while True:
            try:
                return self._warm_up(preset)
            except KernelRefused as refused:
                self._load_anew(refused, preset)

    def _warm_up(self, preset: Preset) -> None:
        """Compiles the preset's own shapes ahead; stops as soon as a job waits."""
        self._send_status("warming", "Compiling ahead of the first video")
        request = example_request(preset)
        for event in self._pipeline.warm_up(self._loaded, request):
            if not _is_loaded(event) and self._consensus.decide("waiting", not self._waiting.empty()):
                return
            if isinstance(event, Compiling):
                self._send_status("warming", f"Loaded {event.what} precompiled" if event.is_loaded else f"Compiling {event.what}")
        self._warm.add(Shape.of(request, self._model))

    def _load(
        self, preset: Preset, is_stopped: Callable[[], bool] = lambda: False, request: GenerationRequest | None = None
    ) -> None:
        """Loads the preset's model, if it is not loaded already; meanwhile the programs of the `request` are made ready. The old
        model is dropped only when the new one's files are here and checked, but before they are loaded: memory may not hold both.
        Raises: Stopped about a second after `is_stopped`, but on several hosts, which would stop at different places.
        """
        wanted = (self._model or preset.model_source, preset.dtype)
        if self._loaded_from == wanted:
            return
        self._start_runtime()
        self._send_status("loading", f"Loading {preset.title}")
        report = until(is_stopped, self._report_loading) if self._consensus.is_alone else self._report_loading
        files = self._pipeline.check(preset, self._model, report)
        if len(set(self._gather("checked", getattr(files, "mark", "")))) > 1:
            raise ModelError("The hosts have different files", "of this model", "download it anew on each of them")
        self._loaded = self._loaded_from = None
        self._warm.clear()
        self._loaded = self._pipeline.load(preset, self._model, report, files=files, request=request)
        self._loaded_from, self._is_of_use = wanted, True
        self._send_facts()

    def _start_runtime(self) -> None:
        """Imports the pipeline and asks for the devices, once. Then a preset may run, unless one model replaces all."""
        if self._pipeline is not None:
            return
        self._send_status("loading", "Starting the runtime")
        pipeline = self._import_pipeline()
        try:
            self._notice = pipeline.notice(pipeline.devices())
        except Exception as error:
            self._notice = pipeline.notice(error)
            if self._notice is None:
                raise
            self._channel.send(Facts(facts=WorkerFacts(notice=self._notice)))
            raise DeviceError(self._notice.found, fix=self._notice.mend) from error
        pipeline.recall(lambda own: self._gather("without", own))
        self._pipeline, self._is_of_use = pipeline, self._model is None

    def _report_loading(self, event: Event) -> None:
        """Reports the progress of loading, as the worker's status and as an event of each job that waits for it."""
        if isinstance(event, Loading):
            self._send_status("loading", f"Loading {event.what}{_share(event)}")
        elif isinstance(event, Compiling):  # the weights are here, and a program that was begun meanwhile is not ready
            self._send_status("warming", f"Compiling {event.what}")
        with self._lock:
            jobs = [task.job_id for task in self._tasks.values() if not task.is_cancelled.is_set()]
        for job_id in jobs:
            self._send_event(job_id, event)

    def _serve(self, task: Task) -> None:
        try:
            with folder_lock(task.folder):
                final, outcome = self._result_of(task)
        except Closing:
            return
        if isinstance(final, Finished):
            self._rates = final.result.rates
        if self._pipeline is not None:
            self._send_facts()
        if final is not None:
            self._send_event(task.job_id, final)
        with self._lock:
            self._begun = None
            self._tasks.pop(task.job_id, None)
        self._gather(outcome)
        self._send_rest()

    def _result_of(self, task: Task) -> tuple[Event | None, str]:
        """Runs one job and returns its final event, to be sent; None if `_cancel` has sent one, before the job began. And what
        all hosts gather for then."""
        try:
            self._load(find_preset(task.request.preset), lambda: self._is_given_up(task), task.request)
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
            failed = self._explain(error)
        return (self._with_proposals(failed, task) if failed.is_short and self._consensus.is_alone else failed.event), outcome

    def _make_on_what_serves(self, task: Task) -> Event:
        """As `_make`; where a kernel is refused, on the model laid out anew without it. Each is refused once at most."""
        while True:
            try:
                return self._make(task, loaded=time.monotonic())
            except KernelRefused as refused:
                try:
                    self._load_anew(refused, find_preset(task.request.preset), lambda: self._is_given_up(task))
                except Stopped:
                    return Cancelled(None)
                self._send_status("busy", "Making a video")

    def _load_anew(self, refused: KernelRefused, preset: Preset, is_stopped: Callable[[], bool] = lambda: False) -> None:
        logger.warning("%s; loading the model again, to be laid out without it", refused.cause)
        self._gather(outcome_of(refused))
        self._loaded = self._loaded_from = None
        self._load(preset, is_stopped)

    def _make(self, task: Task, loaded: float) -> Event:
        """Makes the video and returns its final event. Raises: Closing, after what was done is kept."""
        self._is_idle.clear()
        try:
            given = task.request, self._loaded, task.folder, functools.partial(self._is_cancelled, task)
            hear = functools.partial(self._hear, task)
            make = self._pipeline.live(*given, hear) if task.request.is_open else self._pipeline.generate(*given)
            with contextlib.closing(make) as events:
                for event in events:
                    if isinstance(event, Encoding):
                        self._warm.add(Shape.of(task.request, self._model))
                    if event.is_final:
                        return _with_seconds(event, load=loaded - task.arrived, total=time.monotonic() - task.arrived)
                    self._send_event(task.job_id, event)
                    if isinstance(event, Compiling) and not _is_loaded(event) and self._is_cancelled(task):
                        return Cancelled(None)  # there is nothing to keep yet, and compiling may take minutes
                    if self._is_stopping.is_set():
                        raise Closing
            return Failed("The pipeline ended without a result", "This is a bug: please report it")
        finally:
            self._is_idle.set()

    def _is_cancelled(self, task: Task) -> bool:
        return self._consensus.decide("cancelled", task.is_cancelled.is_set())

    def _hear(self, task: Task) -> list[Cue]:
        said = self._consensus.decide("said", [cue.model_dump() for cue in task.hear()])
        return [Cue(**cue) for cue in said]

    def _is_given_up(self, task: Task) -> bool:
        """Whether the model that is being loaded is no longer needed: this task was cancelled, and no other needs that model."""
        if not task.is_cancelled.is_set():
            return False
        with self._lock:
            others = [other.request for other in self._tasks.values() if not other.is_cancelled.is_set()]
        return self._model_of(task.request) not in map(self._model_of, others)

    def _model_of(self, request: GenerationRequest) -> str:
        return Shape.of(request, self._model).model

    def _explain(self, error: Exception) -> "_Explained":
        """The error explained, and kept for the status."""
        failed = explain(error)
        self._trouble = f"{failed.cause}; {failed.fix}"
        return _Explained(event=failed, is_short=is_memory_short(error) and not isinstance(error, StudioError))

    def _with_proposals(self, failed: "_Explained", task: Task) -> Failed:
        """The failure with what would fit. If the weights alone found no room, a shorter video would find none either."""
        if self._loaded is None:
            return Failed("There is not enough memory for this model", "Take a model that needs less, or more chips: see Models")
        self._send_status("busy", "Looking for what would fit")
        try:
            tell = until(task.is_cancelled.is_set, lambda event: self._send_event(task.job_id, event))
            proposals = self._pipeline.would_fit(task.request, tell)
        except Stopped:
            proposals = ()
        except Exception:
            logger.exception("What would fit could not be found")
            proposals = ()
        if not proposals:
            return failed.event
        fix = f"It would fit at {', or at '.join(map(str, proposals))}"
        return Failed(failed.event.cause, fix, proposals)

    def _begin(self, task: Task) -> bool:
        with self._lock:
            is_cancelled = task.is_cancelled.is_set()
            self._begun = None if is_cancelled else task.job_id
        if self._consensus.decide("begin", is_cancelled):
            return False
        self._send_status("busy", "Making a video")
        return True

    def _send_event(self, job_id: str, event: Event) -> None:
        self._channel.send(JobEvent(job_id=job_id, event=event))

    def _send_facts(self) -> None:
        facts = WorkerFacts(
            devices=tuple(self._pipeline.devices()),
            model=self._loaded_from[0] if self._loaded_from else None,
            warm=frozenset(self._warm),
            versions=getattr(self._loaded, "versions", {}),
            refused=self._pipeline.refusals(),
            notice=self._notice,
            rates=self._rates,
        )
        self._channel.send(Facts(facts=facts))

    def _send_rest(self) -> None:
        """Sends the status of the idle worker; "failed" only if no request can be served."""
        if self._loaded is not None:
            self._send_status("ready", "Ready")
        elif self._is_of_use:
            self._send_status("ready", "Ready, with no model loaded")
        else:
            self._send_status("failed", self._trouble)

    def _send_status(self, state: str, detail: str) -> None:
        self._status = WorkerStatus(state=state, detail=detail)
        self._channel.send(Status(status=self._status))


@dataclass(frozen=True, kw_only=True)
class _Explained:
    """A failure, and whether it is that memory ran out. Without the error itself, which would keep its arrays on the devices."""

    event: Failed
    is_short: bool


def _is_loaded(event: Event) -> bool:
    """Whether this is about a program that was read from a file, which one host may have and another may not."""
    return isinstance(event, Compiling) and event.is_loaded


def _with_seconds(event: Event, **seconds: float) -> Event:
    """The final event with these seconds added to its result's; the pipeline's own measurements stay."""
    result = getattr(event, "result", None)
    if not isinstance(event, Finished | Cancelled) or not isinstance(result, VideoResult):
        return event
    return replace(event, result=replace(result, seconds={**seconds, **result.seconds, "total": seconds["total"]}))


def _share(event: Loading) -> str:
    if not event.bytes_total:
        return ""
    speed, left = event.bytes_per_second, event.bytes_total - event.bytes_done
    pace = f", {speed / 1e6:.1f} MB/s, {left / speed:.0f} s left" if speed else ""
    return f" ({event.bytes_done / 1e6:.0f} of {event.bytes_total / 1e6:.0f} MB{pace})"
