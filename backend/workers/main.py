"""The worker process's main loop: messages in, events out. The pipeline makes the videos.

Started by `backend.workers.process` as `python -m backend.workers.main`, and ends when the pipe to the engine closes.
"""

import argparse
import contextlib
import faulthandler
import functools
import importlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from backend.contract.cues import Cue
from backend.contract.events import Cancelled, Compiling, Encoding, Event, Failed, Finished, Interrupted, Loading, VideoResult
from backend.contract.request import GenerationRequest, example_request, find_preset
from backend.contract.shape import Shape
from backend.contract.worker import AXES, Device, Notice, WorkerFacts
from backend.errors import DeviceError, KernelRefused, Stopped, StudioError, one_line
from backend.files import folder_lock, is_disk_full
from backend.pipeline.live_events import until
from backend.settings import leave_out_idle_libtpu, own_cores
from backend.workers.channel import Channel, Message
from backend.workers.death import DEVICE_LOST
from backend.workers.notice import notice_about
from backend.workers.patience import HEARTBEAT_SECONDS
from presets import Preset

logger = logging.getLogger(__name__)

KEEP_SECONDS = 5.0  # a job that is being made may take to keep what was done, when the engine is gone
POLITENESS = 10  # lets the page answer first: on two cores, loading and compiling would delay it for seconds


class Closing(BaseException):
    """The engine is gone, and the worker ends; the job goes on with another one."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The functions that a worker needs; imported late, because they import jax. `check` returns the files of a model, which
    `load` takes. An exception from the event function ends `check` and `load`. `notice` says which accelerator is not used and
    why, from the devices or from the error in their place."""

    check: Callable[[Preset, str | None, Callable[[Event], None]], Any]
    load: Callable[..., Any]
    warm_up: Callable[[Any, GenerationRequest], Iterator[Event]]
    generate: Callable[[GenerationRequest, Any, Path, Callable[[], bool]], Iterator[Event]]
    live: Callable[[GenerationRequest, Any, Path, Callable[[], bool], Callable[[], list[Cue]]], Iterator[Event]]
    devices: Callable[[], list[Device]]
    notice: Callable[[Sequence[Device] | Exception], Notice | None]
    refusals: Callable[[], tuple[str, ...]] = tuple


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
    If `end` returns, as for a worker that shares its process, the worker stops its jobs and returns from `run`.
    """

    def __init__(
        self,
        channel: Channel,
        import_pipeline: Callable[[], Pipeline],
        model: str | None,
        end: Callable[[int], object] = os._exit,
    ):
        self._channel, self._import_pipeline, self._model, self._end = channel, import_pipeline, model, end
        self._pipeline: Pipeline | None = None
        self._loaded: Any = None  # what the pipeline's `load` returned
        self._loaded_from: tuple[str, str] | None = None  # the checkpoint and the dtype
        self._is_of_use = False  # whether any request can be served, as far as is known
        self._trouble = ""  # what went wrong last
        self._notice: Notice | None = None  # about an accelerator that is here and not used
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
        while self._channel.send({"type": "alive"}) and not self._is_stopping.wait(HEARTBEAT_SECONDS):
            pass

    def _read(self) -> None:
        """Handles messages until the engine sends "stop" or is gone; then ends the worker. A job that is being made is given
        `KEEP_SECONDS` to end its step and to keep what was done."""
        code = 0
        try:
            for message in self._channel.receive():
                if message["type"] == "stop":
                    break
                self._handle(message)
        except Exception:
            logger.exception("A message could not be handled")
            code = 1
        self._is_stopping.set()
        self._is_idle.wait(KEEP_SECONDS)
        self._end(code)
        with self._lock:
            for task in self._tasks.values():
                task.is_cancelled.set()
        self._waiting.put(None)

    def _handle(self, message: Message) -> None:
        if message["type"] == "run":
            task = Task(
                job_id=message["job_id"],
                request=GenerationRequest.from_stored(message["request"]),
                folder=Path(message["folder"]),
                arrived=time.monotonic(),
                is_cancelled=threading.Event(),
            )
            with self._lock:
                self._tasks[task.job_id] = task
            self._waiting.put(task)
        elif message["type"] == "cancel":
            self._cancel(message["job_id"])
        elif message["type"] == "say":
            with self._lock:
                task = self._tasks.get(message["job_id"])
            if task is not None:
                task.said.put(Cue(**message["cue"]))

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
        try:
            self._load(preset)
            if warm_up:
                self._warm_up_on_what_serves(preset)
            self._send_facts()
        except Exception as error:
            logger.exception("The model could not be prepared")
            self._explain(error)
        self._send_rest()

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
            if not self._waiting.empty():
                return
            if isinstance(event, Compiling):
                self._send_status("warming", f"Loaded {event.what} precompiled" if event.is_loaded else f"Compiling {event.what}")
        self._warm.add(Shape.of(request, self._model))

    def _load(self, preset: Preset, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Loads the preset's model, if it is not loaded already. The old model is dropped only when the new one's files are here
        and checked, but before they are loaded: memory may not hold both. Raises: Stopped about a second after `is_stopped`.
        """
        wanted = (self._model or preset.model_source, preset.dtype)
        if self._loaded_from == wanted:
            return
        self._start_runtime()
        self._send_status("loading", f"Loading {preset.title}")
        report = until(is_stopped, self._report_loading)
        files = self._pipeline.check(preset, self._model, report)
        self._loaded = self._loaded_from = None
        self._warm.clear()
        self._loaded = self._pipeline.load(preset, self._model, report, files=files)
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
            self._channel.send({"type": "facts", "facts": WorkerFacts(notice=self._notice).to_json()})
            raise DeviceError(self._notice.found, fix=self._notice.mend) from error
        self._pipeline, self._is_of_use = pipeline, self._model is None

    def _report_loading(self, event: Event) -> None:
        """Reports the progress of loading, as the worker's status and as an event of each job that waits for it."""
        if isinstance(event, Loading):
            self._send_status("loading", f"Loading {event.what}{_share(event)}")
        with self._lock:
            jobs = [task.job_id for task in self._tasks.values() if not task.is_cancelled.is_set()]
        for job_id in jobs:
            self._send_event(job_id, event)

    def _serve(self, task: Task) -> None:
        try:
            with folder_lock(task.folder):
                final = self._result_of(task)
        except Closing:
            return
        if self._pipeline is not None:
            self._send_facts()
        if final is not None:
            self._send_event(task.job_id, final)
        with self._lock:
            self._begun = None
            self._tasks.pop(task.job_id, None)
        self._send_rest()

    def _result_of(self, task: Task) -> Event | None:
        """Runs one job and returns its final event, to be sent; None if `_cancel` has sent one, before the job began."""
        try:
            self._load(find_preset(task.request.preset), lambda: self._is_given_up(task))
            if not self._begin(task):
                return None
            return self._make_on_what_serves(task)
        except Stopped:
            return None
        except Exception as error:
            logger.exception("Job %s failed", task.job_id)
            if is_disk_full(error):
                return Interrupted(cause="The disk is full", fix="Make room", by="disk")
            if is_device_lost(error):
                self._channel.send({"type": "dying", "reason": f"A device was lost ({one_line(str(error))[:200]})"})
                self._end(DEVICE_LOST)
            return self._explain(error)

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
        self._loaded = self._loaded_from = None
        self._load(preset, is_stopped)

    def _make(self, task: Task, loaded: float) -> Event:
        """Makes the video and returns its final event. Raises: Closing, after what was done is kept."""
        self._is_idle.clear()
        try:
            given = task.request, self._loaded, task.folder, task.is_cancelled.is_set
            make = self._pipeline.live(*given, task.hear) if task.request.is_open else self._pipeline.generate(*given)
            with contextlib.closing(make) as events:
                for event in events:
                    if isinstance(event, Encoding):
                        self._warm.add(Shape.of(task.request, self._model))
                    if event.is_final:
                        return _with_seconds(event, load=loaded - task.arrived, total=time.monotonic() - task.arrived)
                    self._send_event(task.job_id, event)
                    if isinstance(event, Compiling) and task.is_cancelled.is_set():
                        return Cancelled(None)  # there is nothing to keep yet, and compiling may take minutes
                    if self._is_stopping.is_set():
                        raise Closing
            return Failed("The pipeline ended without a result", "This is a bug: please report it")
        finally:
            self._is_idle.set()

    def _is_given_up(self, task: Task) -> bool:
        """Whether the model that is being loaded is no longer needed: this task was cancelled, and no other needs that model."""
        if not task.is_cancelled.is_set():
            return False
        with self._lock:
            others = [other.request for other in self._tasks.values() if not other.is_cancelled.is_set()]
        return self._model_of(task.request) not in map(self._model_of, others)

    def _model_of(self, request: GenerationRequest) -> str:
        return Shape.of(request, self._model).model

    def _explain(self, error: Exception) -> Failed:
        """The error explained, and kept for the status."""
        failed = explain(error)
        self._trouble = f"{failed.cause}; {failed.fix}"
        return failed

    def _begin(self, task: Task) -> bool:
        with self._lock:
            if task.is_cancelled.is_set():
                return False
            self._begun = task.job_id
        self._send_status("busy", "Making a video")
        return True

    def _send_event(self, job_id: str, event: Event) -> None:
        self._channel.send({"type": "event", "job_id": job_id, "event": event.to_json()})

    def _send_facts(self) -> None:
        facts = WorkerFacts(
            devices=tuple(self._pipeline.devices()),
            model=self._loaded_from[0] if self._loaded_from else None,
            warm=frozenset(self._warm),
            versions=getattr(self._loaded, "versions", {}),
            refused=self._pipeline.refusals(),
            notice=self._notice,
        )
        self._channel.send({"type": "facts", "facts": facts.to_json()})

    def _send_rest(self) -> None:
        """Sends the status of the idle worker; "failed" only if no request can be served."""
        if self._loaded is not None:
            self._send_status("ready", "Ready")
        elif self._is_of_use:
            self._send_status("ready", "Ready, with no model loaded")
        else:
            self._send_status("failed", self._trouble)

    def _send_status(self, state: str, detail: str) -> None:
        self._channel.send({"type": "status", "state": state, "detail": detail})


def is_device_lost(error: Exception) -> bool:
    """Whether the devices of this process can no longer be used, so that only a new process can go on."""
    if type(error).__name__ not in ("XlaRuntimeError", "JaxRuntimeError"):
        return False
    return str(error).startswith(("UNAVAILABLE", "INTERNAL", "ABORTED", "DATA_LOSS", "DEADLINE_EXCEEDED"))


def explain(error: Exception) -> Failed:
    """Turns an exception into one sentence on its cause and one on what to do."""
    if isinstance(error, StudioError):
        return Failed(error.cause, error.fix or "Change the request, or see the worker's log")
    text = one_line(str(error))[:300]
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower():
        return Failed("There is not enough memory for this video", "Choose a smaller size or fewer frames")
    return Failed(
        f"{type(error).__name__}: {text}" if text else type(error).__name__,
        "See the newest file in the data folder's logs for details",
    )


def import_pipeline(module: str | None, profile: tuple[Path, str] | None = None, **options: Any) -> Pipeline:
    """The real pipeline, which loads with these options; or, for tests, a module that has all its functions. `profile` is a
    folder for traces, and the steps that are traced."""
    if module is not None:
        stand_in = importlib.import_module(module)
        return Pipeline(
            check=stand_in.check,
            load=stand_in.load,
            warm_up=stand_in.warm_up,
            generate=stand_in.generate,
            live=getattr(stand_in, "live", None),
            devices=stand_in.device_facts,
            refusals=getattr(stand_in, "refusals", tuple),
            notice=getattr(stand_in, "notice", lambda devices: None),
        )
    from backend.pipeline.generate import generate
    from backend.pipeline.live import live
    from backend.pipeline.load import load
    from backend.pipeline.model_files import check_model
    from backend.pipeline.profiling import Profile
    from backend.pipeline.warm_up import warm_up
    from backend.runtime.devices import device_facts
    from backend.runtime.refusals import REFUSALS

    if profile is not None:
        first, last = map(int, profile[1].split("-"))
        generate = functools.partial(generate, profile=Profile(folder=profile[0], first=first, last=last))
    return Pipeline(
        check=check_model,
        load=functools.partial(load, **options),
        warm_up=warm_up,
        generate=generate,
        live=live,
        devices=device_facts,
        refusals=REFUSALS.sentences,
        notice=notice_about,
    )


def _with_seconds(event: Event, **seconds: float) -> Event:
    """The final event with these seconds added to its result's; the pipeline's own measurements stay."""
    result = getattr(event, "result", None)
    if not isinstance(event, Finished | Cancelled) or not isinstance(result, VideoResult):
        return event
    return replace(event, result=replace(result, seconds={**seconds, **result.seconds, "total": seconds["total"]}))


def _share(event: Loading) -> str:
    if not event.bytes_total:
        return ""
    speed = f", {event.bytes_per_second / 1e6:.1f} MB/s" if event.bytes_per_second else ""
    return f" ({event.bytes_done / 1e6:.0f} of {event.bytes_total / 1e6:.0f} MB{speed})"


def take_channel() -> Channel:
    """The pipes on standard input and output; afterwards everything that a library prints goes to the log."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)
    return Channel(incoming, outgoing)


def main() -> None:
    """Runs one worker until its engine is gone."""
    parser = argparse.ArgumentParser(prog="backend.workers.main", description="Started by the engine, not by hand.")
    parser.add_argument("--preset", required=True, help="the preset to load first")
    parser.add_argument("--model", help="a checkpoint in place of the presets' own")
    parser.add_argument("--pipeline", help="a module with load, warm_up and generate; for tests")
    parser.add_argument("--warm-up", action="store_true", help="compile the preset's own shapes ahead")
    parser.add_argument("--executables", type=Path, help="a folder of precompiled programs")
    parser.add_argument("--profile", type=Path, help="a folder for traces")
    parser.add_argument("--profile-steps", default="3-5", help="the steps that are traced")
    for axis in AXES:
        parser.add_argument(f"--{axis}", type=int, help="size of this axis of the mesh")
    arguments = parser.parse_args()
    if cores := own_cores():
        os.sched_setaffinity(0, cores)  # before XLA and torch count the cores and start as many threads
    channel = take_channel()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    os.nice(POLITENESS)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    mesh = {axis: getattr(arguments, axis) for axis in AXES}
    profile = None
    if arguments.profile is not None:
        leave_out_idle_libtpu()
        profile = arguments.profile, arguments.profile_steps
    make = functools.partial(import_pipeline, arguments.pipeline, profile, mesh=mesh, executables=arguments.executables)
    worker = Worker(channel, make, arguments.model)
    worker.run(find_preset(arguments.preset), arguments.warm_up)


if __name__ == "__main__":
    main()
