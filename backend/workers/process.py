"""One worker process: how it is started, and the conversation with it."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.schemas.worker import HostPlace, Hosts, WorkerOptions
from backend.settings import PROJECT_FOLDER, Settings, worker_environment
from backend.shares import Share
from backend.workers.channel import Channel
from backend.workers.messages import Begin, Message, Stop
from backend.workers.stale_processes import SERVER_VARIABLE

logger = logging.getLogger(__name__)
_STOP_SECONDS = 7.0  # a server may take ten to end; the worker takes `backend.workers.loop.SAVE_SECONDS` to keep its work
_STACK_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class WorkerPlan:
    """How to start a worker: what to load first, and whether to compile ahead. `pipeline` is for tests.

    `name` begins its logs' names; `transport` says how to reach it, one of `backend.worker_pool.transports.TRANSPORTS`; `share`
    is its part of the machine. A worker on several `hosts` is reached by the link "hosts"; its processes each have a `place`
    among them. `node` is what a link to another machine reaches it by (`Calls.ask` of it), and `machine` which one that is, for
    the operator. Beside a worker of this machine that `has_standby` another process waits to take its place.
    """

    preset: str
    model: str | None
    warm_up: bool
    settings: Settings
    pipeline: str | None = None
    options: WorkerOptions = WorkerOptions()
    name: str = "worker"
    transport: str = "process"
    share: Share = Share()
    hosts: Hosts | None = None
    place: HostPlace | None = None
    node: Any = None
    machine: str = ""
    has_standby: bool = False

    def command(self) -> list[str]:
        """The command line that starts it."""
        options = [("--preset", self.preset), ("--model", self.model), ("--pipeline", self.pipeline)]
        given = [part for name, value in options if value is not None for part in (name, value)]
        return [
            sys.executable,
            "-m",
            "backend.workers.main",
            *given,
            *self.options.words(),
            *(["--warm-up"] if self.warm_up else []),
            *(self.place.words() if self.place else []),
        ]


class WorkerProcess:
    """One process. It calls `on_message` and `on_exit` from a thread of its own, `on_exit` once, at the end."""

    def __init__(
        self,
        plan: WorkerPlan,
        log: Path,
        on_message: Callable[[Message], None],
        on_exit: Callable[[int], None],
        process: subprocess.Popen | None = None,
    ):
        """Starts it, or takes over a `process` that stands by."""
        self._on_message, self._on_exit = on_message, on_exit
        self._process = process or _spawn(plan.command(), plan, log)
        assert self._process.stdin is not None and self._process.stdout is not None, "it has pipes"
        self._channel = Channel(self._process.stdout, self._process.stdin)
        self._thread = threading.Thread(target=self._read, name="worker", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def send(self, message: Message) -> None:
        """Sends a message; if the process is dead, the message is dropped, and `on_exit` reports the death."""
        self._channel.send(message)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended within so many seconds."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Asks it for its stacks, which go to the log, and kills it with the processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGUSR1)
            time.sleep(_STACK_SECONDS)
            self.kill_at_once()

    def kill_at_once(self) -> None:
        """Kills it with the processes that it started. Raises: ProcessLookupError if it is gone."""
        os.killpg(self._process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Asks it to keep its work and to end, and kills it if it does not. Must not be called from a callback."""
        self.send(Stop())
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill_at_once()
            self._process.wait()
        self._thread.join(_STOP_SECONDS)

    def _read(self) -> None:
        try:
            for message in self._channel.receive():
                self._on_message(message)
        except Exception:  # after any error the job must end and the queue continue
            logger.exception("A message of the worker could not be handled; it is ended")
            self._process.kill()
        code = self._process.wait()
        self._channel.close()
        self._on_exit(code)


class Standby:
    """A process that has imported what a worker needs, and waits to become one: a worker that dies then costs no imports. It
    touches no device before."""

    def __init__(self, plan: WorkerPlan, log: Path) -> None:
        """Starts it; its output goes to the log. Raises: OSError."""
        self.log = log
        self._process = _spawn([*plan.command(), "--standby"], plan, log)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def become_worker(
        self, plan: WorkerPlan, on_message: Callable[[Message], None], on_exit: Callable[[int], None]
    ) -> WorkerProcess | None:
        """The worker that it becomes, of the same plan but for the preset; None if it is dead."""
        if self._process.poll() is not None:
            self.stop()
            return None
        worker = WorkerProcess(plan, self.log, on_message, on_exit, self._process)
        worker.send(Begin(preset=plan.preset, warm_up=plan.warm_up))
        return worker

    def stop(self) -> None:
        """Ends it; it has nothing to keep."""
        self._process.kill()
        self._process.wait()
        for stream in filter(None, (self._process.stdin, self._process.stdout)):
            stream.close()


def _spawn(command: list[str], plan: WorkerPlan, log: Path) -> subprocess.Popen:
    """Starts a new interpreter (a fork would share locks) with pipes of its own, which the terminal's Ctrl+C does not reach."""
    with log.open("ab") as stream:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            cwd=PROJECT_FOLDER,
            env={**worker_environment(plan.settings, share=plan.share), SERVER_VARIABLE: str(os.getpid())},
            start_new_session=True,
        )
