"""The main loop of a worker: it handles messages, runs jobs and sends events. The pipeline generates the videos."""

import contextlib
import functools
import logging
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from backend.errors import KernelRefused, Stopped, StudioError, is_memory_short, one_line
from backend.files import folder_lock, is_disk_full
from backend.pipeline.live_events import stop_when
from backend.schemas.events import Cancelled, Compiling, Encoding, Event, Failed, Finished, Interrupted, Proposal, VideoResult
from backend.schemas.prompt_cues import Cue
from backend.schemas.request import GenerationRequest, example_request
from backend.workers import messages
from backend.workers.exit_reasons import DEVICE_LOST
from backend.workers.messages import Channel, Message
from backend.workers.model import Reports, WorkerModel, failure_outcome
from backend.workers.multihost_sync import MultihostSync
from backend.workers.pipeline import Pipeline
from backend.workers.watchdog import HEARTBEAT_SECONDS
from presets import Preset

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
# The errors of jax's runtime after which this process can no longer use its devices, so that a new process must continue.
_LOST_DEVICES = ("UNAVAILABLE", "INTERNAL", "ABORTED", "DATA_LOSS", "DEADLINE_EXCEEDED")
SAVE_SECONDS = 5.0  # time limit for the running job to save its progress after the engine ended


@dataclass(frozen=True, kw_only=True)
class Task:
    """A job in the worker. `arrived` is a monotonic time in seconds. Other threads may set `is_cancelled` and add `cues`."""

    job_id: str
    request: GenerationRequest
    folder: Path
    is_draft: bool = False
    arrived: float = field(default_factory=time.monotonic)
    is_cancelled: threading.Event = field(default_factory=threading.Event)
    cues: queue.SimpleQueue[Cue] = field(default_factory=queue.SimpleQueue)


class Tasks:
    """All tasks of a worker, in order. One thread runs them, another thread adds and cancels them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waiting: queue.Queue[Task | None] = queue.Queue()  # has None at the end after `cancel_all`
        self._tasks: dict[str, Task] = {}  # by job id
        self._running: str | None = None  # the id of the running job

    def add(self, task: Task) -> None:
        with self._lock:
            self._tasks[task.job_id] = task
        self.waiting.put(task)

    def find(self, job_id: str) -> Task | None:
        with self._lock:
            return self._tasks.get(job_id)

    def uncancelled(self) -> list[Task]:
        with self._lock:
            return [task for task in self._tasks.values() if not task.is_cancelled.is_set()]

    def begin(self, task: Task) -> bool:
        """Mark the task as running. Return False if it was already cancelled."""
        with self._lock:
            is_cancelled = task.is_cancelled.is_set()
            self._running = None if is_cancelled else task.job_id
        return not is_cancelled

    def remove(self, task: Task) -> None:
        with self._lock:
            self._running = None
            self._tasks.pop(task.job_id, None)

    def cancel(self, job_id: str) -> bool:
        """Cancel a task. Return True if the task exists but does not run. The caller must then report the task's end."""
        with self._lock:
            task = self._tasks.get(job_id)
            if task is not None:
                task.is_cancelled.set()
            return task is not None and self._running != job_id

    def cancel_all(self) -> None:
        with self._lock:
            for task in self._tasks.values():
                task.is_cancelled.set()
        self.waiting.put(None)


class EngineGone(BaseException):
    """The engine has ended, so the worker ends. Another worker continues the job."""


class Worker:
    """Loads models and runs one job after another. The main thread loads and generates. A second thread reads messages, so that a
    cancel takes effect immediately. `end` ends the process. If `end` returns, because the worker shares its process with other
    code, the worker cancels its jobs and returns from `run`. A multihost worker has a `Worker` on each host, with the same jobs
    in the same order. `sync` makes all other decisions about the next program equal on all hosts."""

    def __init__(
        self,
        channel: Channel,
        import_pipeline: Callable[[], Pipeline],
        model: str | None,
        end: Callable[[int], object] = os._exit,
        sync: MultihostSync | None = None,
    ):
        self._channel, self._end = channel, end
        self._sync = sync
        self._reports = Reports(channel, sync)
        self._tasks = Tasks()
        self._model = WorkerModel(
            import_pipeline, model, self._reports, lambda: [task.job_id for task in self._tasks.uncancelled()]
        )
        self._model_messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._last_error = ""
        self._searching: threading.Thread | None = None  # searches for settings that fit into memory
        self._is_stopping = threading.Event()
        self._is_idle = threading.Event()  # set while no job runs
        self._is_idle.set()

    def run(self, preset: Preset, warm_up: bool) -> None:
        """Load the preset's model and warm up, then run jobs until the engine sends `Stop` or ends. A model that cannot be
        prepared raises no error, as the first job will fail too. Cancelling a job does not stop the preparation."""
        threading.Thread(target=self._read_messages, name="messages", daemon=True).start()
        threading.Thread(target=self._send_heartbeats, name="heartbeat", daemon=True).start()
        outcome = "prepared"
        try:
            self._model.load(preset, request=example_request(preset) if warm_up else None)
            if warm_up:
                self._model.warm_up(preset)
            self._model.report_facts()
        except Exception as error:
            logger.exception("The model could not be prepared")
            self._to_failed(error)
            outcome = failure_outcome(error)
        self._reports.gather(outcome)
        self._report_idle_status()
        while (task := self._tasks.waiting.get()) is not None:
            self._run_task(task)

    def _send_heartbeats(self) -> None:
        while self._channel.send(messages.Heartbeat()) and not self._is_stopping.wait(HEARTBEAT_SECONDS):
            pass

    def _read_messages(self) -> None:
        """Handle messages until the engine sends `Stop` or ends. Then end the worker. The running job has `SAVE_SECONDS` to
        finish its step and save its progress."""
        code = 0
        try:
            for message in self._channel.receive():
                if isinstance(message, messages.Stop):
                    break
                self._handle_message(message)
        except Exception:
            logger.exception("A message could not be handled")
            code = 1
        self._is_stopping.set()
        self._is_idle.wait(SAVE_SECONDS)
        self._exit_process(code)
        self._tasks.cancel_all()

    def _handle_message(self, message: Message) -> None:
        match message:
            case messages.Decide() | messages.Gathered() if self._sync is not None:
                self._sync.handle(message)
            case messages.ExitNow():
                self._exit_process(0)
            case messages.Run():
                job_id, is_draft = message.job_id, message.is_draft
                self._tasks.add(Task(job_id=job_id, request=message.request, folder=message.folder, is_draft=is_draft))
            case messages.Cancel(job_id=job_id):
                if self._tasks.cancel(job_id):
                    self._reports.send_event(job_id, Cancelled(None))
            case messages.AddCue(job_id=job_id, cue=cue):
                if task := self._tasks.find(job_id):
                    task.cues.put(cue)
            case messages.ExpectModels() | messages.PrepareFor() | messages.ManageModel():
                self._model_messages.put(message)
                if self._sync is None:  # handled in a thread, so that neither the running job nor the next message waits
                    threading.Thread(target=self._handle_model_messages, name="models", daemon=True).start()

    def _handle_model_messages(self) -> None:
        """Handle the queued messages about models. All hosts of a multihost worker call this between two jobs, and handle the
        messages of the first host."""
        new = [messages.encode_message(self._model_messages.get()) for _ in range(self._model_messages.qsize())]
        for message in map(messages.decode_message, self._reports.decide("model messages", new)):
            match message:
                case messages.ManageModel(model=model, how=how):
                    self._model.manage(model, how)
                case messages.ExpectModels(models=models, preset=preset):
                    self._model.expect_models(models, preset)
                case messages.PrepareFor(request=request):
                    self._model.prepare_for(request)

    def _exit_process(self, code: int) -> None:
        """End the process on request, so that the kernel crash guard does not count a running kernel as crashed."""
        if self._model.pipeline is not None:
            self._model.pipeline.forget_running_kernels()
        self._end(code)

    def _run_task(self, task: Task) -> None:
        if self._sync is not None:
            self._handle_model_messages()
        try:
            with contextlib.nullcontext() if task.is_draft else folder_lock(task.folder):
                final, outcome = self._generate_result(task)
        except EngineGone:
            return
        finally:
            if task.is_draft:
                shutil.rmtree(task.folder, ignore_errors=True)
        if isinstance(final, Finished):
            self._model.rates = final.result.rates
        if self._model.pipeline is not None:
            self._model.report_facts()
        if final is not None:
            self._reports.send_event(task.job_id, final)
        self._tasks.remove(task)
        self._reports.gather(outcome)
        self._report_idle_status()

    def _generate_result(self, task: Task) -> tuple[Event | None, str]:
        """Run a job. Return its final event, and its outcome, which must be equal on all hosts. Return no event if the job was
        cancelled before it started, because Cancelled was already sent."""
        try:
            if task.request.finished_video:
                self._model.start()  # upscaling needs only the devices, not the model of a preset
            else:
                # Several hosts compile only after the load. They decide together after each program whether to continue. A host
                # that had compiled a program during the load would skip this decision, and the other hosts would wait for it.
                early = task.request if self._sync is None else None
                self._model.load(task.request.resolved_preset, lambda: self._is_load_abandoned(task), early)
            if self._reports.decide("begin", not self._tasks.begin(task)):
                return None, "made"
            self._report_busy(task)
            return self._generate_with_fallbacks(task), "made"
        except Stopped:
            return None, "made"
        except Exception as error:
            logger.exception("Job %s failed", task.job_id)
            outcome = failure_outcome(error)
            if is_disk_full(error):
                return Interrupted(cause="The disk is full", fix="Free disk space", by="disk"), outcome
            is_jax_error = type(error).__name__ in ("XlaRuntimeError", "JaxRuntimeError")
            # With several hosts, any error of jax's runtime may mean that a host is lost.
            is_lost = str(error).startswith(_LOST_DEVICES) or self._sync is not None
            if is_jax_error and is_lost and "RESOURCE_EXHAUSTED" not in str(error):
                self._channel.send(messages.Exiting(reason=f"A device was lost ({one_line(str(error))[:200]})"))
                self._end(DEVICE_LOST)
            failed, is_short = self._to_failed(error), is_memory_short(error) and not isinstance(error, StudioError)
        may_propose = is_short and self._sync is None and not task.request.finished_video and not task.is_draft
        return (self._add_proposals(failed, task) if may_propose else failed), outcome

    def _generate_with_fallbacks(self, task: Task) -> Event:
        """Generate the video. Reload the model without a refused kernel, and unload idle models if memory is short."""
        while True:
            try:
                return self._generate(task, loaded=time.monotonic())
            except KernelRefused as refused:
                try:
                    preset = task.request.resolved_preset
                    self._model.reload_without_kernel(refused, preset, lambda: self._is_load_abandoned(task))
                except Stopped:
                    return Cancelled(None)
                self._report_busy(task)
            except Exception as error:
                if isinstance(error, StudioError) or not is_memory_short(error) or not self._model.unload_idle():
                    raise
                logger.warning("Memory is short (%s); continuing without the other cached models", one_line(str(error))[:200])

    def _generate(self, task: Task, loaded: float) -> Event:
        """Generate the video and return its final event. Raises: EngineGone, after the progress was saved."""
        self._is_idle.clear()
        try:
            self._model.prefetch_next()
            pipeline = self._model.started
            given = task.request, self._model.loaded, task.folder, functools.partial(self._is_cancelled, task)
            if task.is_draft:
                events = pipeline.draft(*given)
            elif task.request.is_open:
                events = pipeline.live(*given, functools.partial(self._new_cues, task))
            else:
                events = pipeline.generate(*given)
            with contextlib.closing(events):
                for event in events:
                    if isinstance(event, Encoding):
                        self._model.warm.add(self._model.shape_for(task.request))
                    if event.is_final:
                        return _add_seconds(event, load=loaded - task.arrived, total=time.monotonic() - task.arrived)
                    self._reports.send_event(task.job_id, event)
                    if isinstance(event, Compiling) and not event.is_loaded and self._is_cancelled(task):
                        return Cancelled(None)  # do not wait: nothing can be saved yet, and compiling may take minutes
                    if self._is_stopping.is_set():
                        raise EngineGone
            return Failed("The pipeline ended without a result", "This is a bug: please report it")
        finally:
            self._is_idle.set()

    def _is_cancelled(self, task: Task) -> bool:
        return self._reports.decide("cancelled", task.is_cancelled.is_set())

    def _new_cues(self, task: Task) -> list[Cue]:
        new = [task.cues.get().model_dump() for _ in range(task.cues.qsize())]
        return [Cue(**cue) for cue in self._reports.decide("cues", new)]

    def _is_load_abandoned(self, task: Task) -> bool:
        """Return whether `task` was cancelled, and no other task needs its model."""
        if not task.is_cancelled.is_set():
            return False
        models = [self._model.shape_for(other.request).model for other in self._tasks.uncancelled()]
        return self._model.shape_for(task.request).model not in models

    def _to_failed(self, error: Exception) -> Failed:
        """Convert an exception to a cause and a suggestion, one sentence each, and store them for the worker's status."""
        kind, text = type(error).__name__, one_line(str(error))[:300]
        if isinstance(error, StudioError):
            failed = Failed(error.cause, error.fix or "Change the request, or see the worker's log")
        elif is_memory_short(error):
            failed = Failed("There is not enough memory for this video", "Choose a smaller size or fewer frames")
        else:
            fix = "See the newest file in the data folder's logs for details"
            failed = Failed(f"{kind}: {text}" if text else kind, fix)
        self._last_error = f"{failed.cause}; {failed.fix}"
        return failed

    def _add_proposals(self, failed: Failed, task: Task) -> Failed:
        """Suggest settings that fit into memory, or another model if not even the weights fit. The caller must have released the
        exception, because its traceback keeps arrays on the devices."""
        if self._model.loaded is None:
            return Failed("There is not enough memory for this model", "Take a model that needs less, or more chips: see Models")
        if self._searching is not None and self._searching.is_alive():  # an earlier, cancelled job's search still runs
            return failed
        self._reports.send_status("busy", "Searching for settings that fit")
        found: list[Proposal] = []

        def search() -> None:
            report = stop_when(task.is_cancelled.is_set, functools.partial(self._reports.send_event, task.job_id))
            try:
                found.extend(self._model.started.suggest_smaller_requests(task.request, report))
            except Stopped:  # the job was cancelled
                pass
            except Exception:
                logger.exception("The search for settings that fit failed")

        self._searching = threading.Thread(target=search, name="would-fit", daemon=True)
        self._searching.start()
        # If the job is cancelled, this loop does not wait for the end of the thread. The thread compiles programs for smaller
        # settings, and one compilation may take minutes.
        while self._searching.is_alive() and not task.is_cancelled.is_set():
            self._searching.join(_LOOK_SECONDS)
        if not (proposals := tuple(found)):
            return failed
        return Failed(failed.cause, f"It would fit at {', or at '.join(map(str, proposals))}", proposals)

    def _report_busy(self, task: Task) -> None:
        if task.is_draft:
            self._reports.send_status("busy", "Generating an instant draft")
        else:
            self._reports.send_status("busy", "Generating a video")

    def _report_idle_status(self) -> None:
        """Send the status of the idle worker, "failed" only if no request can be served."""
        if self._model.loaded is not None:
            self._reports.send_status("ready", "Ready")
        elif self._model.can_serve:
            self._reports.send_status("ready", "Ready, with no model loaded")
        else:
            self._reports.send_status("failed", self._last_error)


def _add_seconds(event: Event, **seconds: float) -> Event:
    """Add the worker's measured seconds to a final event. The pipeline's own values are kept, except for `total`."""
    result = getattr(event, "result", None)
    if not isinstance(event, Finished | Cancelled) or not isinstance(result, VideoResult):
        return event
    return replace(event, result=replace(result, seconds={**seconds, **result.seconds, "total": seconds["total"]}))
