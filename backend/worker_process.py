"""Starts, feeds, cancels and restarts the worker process. Knows jobs by id only: the queue is the engine's."""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Literal

from backend import events
from backend.channel import Channel, Message
from backend.events import Event, Failed
from backend.request import GenerationRequest
from backend.settings import PROJECT_FOLDER, Settings, worker_environment
from backend.worker_facts import WorkerFacts

WorkerState = Literal["starting", "loading", "warming", "ready", "busy", "failed"]
MAX_IDLE_RESTARTS = 2  # after that, a worker that dies without a job stays down until a job comes
KEPT_LOGS = 10
_STOP_SECONDS = 3.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """What the worker does right now, with a sentence for people."""

    state: WorkerState
    detail: str


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """How a worker uses its devices: sizes of the mesh's axes, planned where None, and a folder of precompiled programs."""

    dp: int | None = None
    sp: int | None = None
    tp: int | None = None
    executables: Path | None = None

    def words(self) -> list[str]:
        """As options of the worker's command line."""
        given = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [word for name, value in given if value is not None for word in (f"--{name}", str(value))]


@dataclass(frozen=True, kw_only=True)
class WorkerPlan:
    """How to start a worker: what to load first, and whether to compile ahead. `pipeline` is for tests."""

    preset: str
    model: str | None
    warm_up: bool
    settings: Settings
    pipeline: str | None = None
    options: WorkerOptions = WorkerOptions()

    def command(self) -> list[str]:
        """The command line that starts it."""
        options = [("--preset", self.preset), ("--model", self.model), ("--pipeline", self.pipeline)]
        given = [part for name, value in options if value is not None for part in (name, value)]
        return [sys.executable, "-m", "backend.worker", *given, *self.options.words(),
                *(["--warm-up"] if self.warm_up else [])]  # fmt: skip


class WorkerProcess:
    """One process. `on_message` and `on_exit` are called from a thread of its own, `on_exit` once, at the end."""

    def __init__(self, plan: WorkerPlan, log: Path, on_message: Callable[[Message], None], on_exit: Callable[[int], None]):
        self._on_message, self._on_exit = on_message, on_exit
        with log.open("ab") as stream:
            self._process = _spawn(plan, stream)
        self._channel = Channel(self._process.stdout, self._process.stdin)
        self._thread = threading.Thread(target=self._read, name="worker", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def send(self, message: Message) -> None:
        """Sends a message; one that a dead process does not get is dropped, `on_exit` tells."""
        self._channel.send(message)

    def stop(self) -> None:
        """Asks it to end, and ends it if it does not. Never called from a callback."""
        self.send({"type": "stop"})
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)  # and what it has started
            self._process.wait()
        self._thread.join(_STOP_SECONDS)

    def _read(self) -> None:
        try:
            for message in self._channel.receive():
                self._on_message(message)
        except Exception:  # whatever it is, the job must end and the queue go on
            logger.exception("A message of the worker could not be handled; it is ended")
            self._process.kill()
        code = self._process.wait()
        self._channel.close()
        self._on_exit(code)


def _spawn(plan: WorkerPlan, log: IO[bytes]) -> subprocess.Popen:
    """A fresh interpreter (a fork would share locks), deaf to the terminal's Ctrl+C, talking over its own pipes."""
    return subprocess.Popen(plan.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                            cwd=PROJECT_FOLDER, env=worker_environment(plan.settings),
                            start_new_session=True)  # fmt: skip


class Supervisor:
    """Keeps one worker process alive for one job at a time.

    `on_event(job_id, event)` is called from the worker's thread with no lock held; a job that was given to `run` gets
    exactly one final event, also when the process dies.
    """

    def __init__(self, plan: WorkerPlan, on_event: Callable[[str, Event], None]):
        self._plan, self._on_event = plan, on_event
        self._lock = threading.Lock()
        self._process: WorkerProcess | None = None
        self._job_id: str | None = None
        self._idle_restarts = 0
        self._is_closed = False
        self._log: Path | None = None
        self._status = WorkerStatus(state="starting", detail="The worker has not been started")
        self._facts = WorkerFacts()

    def start(self) -> None:
        """Starts the process if there is none."""
        with self._lock:
            self._start()

    def run(self, job_id: str, request: GenerationRequest, folder: Path) -> None:
        """Gives the worker a job; it must not have another."""
        with self._lock:
            self._job_id, self._idle_restarts = job_id, 0
            if self._process is None:
                self._start()
            self._process.send({"type": "run", "job_id": job_id, "request": request.to_json(), "folder": str(folder)})

    def cancel(self, job_id: str) -> None:
        """Asks the worker to stop this job; its final event follows."""
        with self._lock:
            if self._process is not None and self._job_id == job_id:
                self._process.send({"type": "cancel", "job_id": job_id})

    def status(self) -> WorkerStatus:
        """What the worker does right now."""
        with self._lock:
            return self._status

    def facts(self) -> WorkerFacts:
        """What the worker last told of its devices, its model and the shapes that are compiled."""
        with self._lock:
            return self._facts

    @property
    def log(self) -> Path | None:
        """The newest worker's log, for the operator."""
        with self._lock:
            return self._log

    @property
    def pid(self) -> int | None:
        """The process's id, or None while there is no process."""
        with self._lock:
            return self._process.pid if self._process else None

    def close(self) -> None:
        """Ends the process. No callback comes afterwards."""
        with self._lock:
            self._is_closed = True
            process = self._process
        if process is not None:
            process.stop()

    def _start(self) -> None:
        self._log = _new_log(self._plan.settings.data_dir / "logs")
        self._status = WorkerStatus(state="starting", detail="Starting the worker")
        self._process = WorkerProcess(self._plan, self._log, self._receive, self._mourn)

    def _receive(self, message: Message) -> None:
        if message["type"] == "status":
            with self._lock:
                self._status = WorkerStatus(state=message["state"], detail=message["detail"])
        elif message["type"] == "facts":
            with self._lock:
                self._facts = WorkerFacts.from_json(message["facts"])
        elif message["type"] == "event":
            self._pass_on(message["job_id"], events.from_json(message["event"]))

    def _pass_on(self, job_id: str, event: Event) -> None:
        with self._lock:
            if self._is_closed or job_id != self._job_id:
                return  # a word on a job that has already ended
            if event.is_final:
                self._job_id = None
        self._on_event(job_id, event)

    def _mourn(self, code: int) -> None:
        """The process is dead: fails its job, and starts another unless dying has become a habit."""
        with self._lock:
            if self._is_closed:
                return
            job_id, self._job_id = self._job_id, None
            self._process, self._facts = None, WorkerFacts()
            death = _death(code)
            self._status = WorkerStatus(state="failed", detail=f"The worker {death}; its log is {self._log}")
            logger.error("%s", self._status.detail)
        if job_id is not None:
            self._on_event(job_id, Failed(f"The worker process {death}", _advice(code, self._log)))
        with self._lock:
            if self._process is None and not self._is_closed and self._idle_restarts < MAX_IDLE_RESTARTS:
                self._idle_restarts += 1
                self._start()


def _death(code: int) -> str:
    if code < 0:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def _advice(code: int, log: Path) -> str:
    if -code == signal.SIGKILL:
        return "The machine may be out of memory: choose a smaller size or fewer frames, and try again"
    return f"Try again; if it happens again, the reason stands at the end of {log}"


def _new_log(folder: Path) -> Path:
    """A fresh log file's path; the oldest ones are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(folder.glob("worker-*.log"))[: -KEPT_LOGS + 1]:
        old.unlink(missing_ok=True)
    return folder / f"worker-{datetime.now(UTC):%Y%m%dT%H%M%S%f}.log"
