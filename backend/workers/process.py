"""Start a worker process and exchange messages with it. Other transports do the same with workers on other machines."""

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
from typing import Any, Protocol

from backend.schemas.worker import HostPlace, Hosts, WorkerOptions
from backend.settings import DATA_VARIABLE, PROJECT_FOLDER, Settings, worker_environment
from backend.shares import Share
from backend.workers.messages import Begin, Channel, ExitNow, Message, Stop

logger = logging.getLogger(__name__)
# The longest wait for a worker to end. It is longer than `backend.workers.loop.SAVE_SECONDS`, in which the worker saves its work,
# and shorter than the ten seconds in which a server must end.
_STOP_SECONDS = 7.0
_STACK_SECONDS = 1.0

SERVER_VARIABLE = "STUDIO_SERVER_PID"
"""The environment variable of a worker that holds its server's process id."""
_PROCESSES = Path("/proc")

OnMessage = Callable[[Message], None]
OnExit = Callable[[int], None]
"""Receives the worker's exit code: negative if a signal killed the worker, `exit_reasons.LOST` if the code is not known."""


class Transport(Protocol):
    """A running worker. A separate thread calls `on_message`, and at the end `on_exit` once."""

    @property
    def pid(self) -> int | None:
        """None if the worker does not run on this machine."""

    def send(self, message: Message) -> object:
        """Send a message. If the worker is dead, the message is dropped."""

    def kill(self) -> None:
        """Kill a worker that does not answer. If possible, the worker first writes its threads' stacks to its log."""

    def stop(self) -> None:
        """Ask the worker to save its work and end. Kill it if it does not end in time. Must not be called from a callback."""


@dataclass(frozen=True, kw_only=True)
class WorkerPlan:
    """The options to start a worker."""

    preset: str
    model: str | None  # a checkpoint that replaces the presets' checkpoints
    warm_up: bool
    settings: Settings
    pipeline: str | None = None  # a module that replaces the pipeline in tests
    options: WorkerOptions = WorkerOptions()
    name: str = "worker"  # the start of the file names of its logs
    transport: str = "process"  # a key of `backend.worker_pool.transports.TRANSPORTS`
    share: Share = Share()  # its part of the machine
    hosts: Hosts | None = None  # for the transport "hosts"
    place: HostPlace | None = None  # the place of this process among the hosts
    node: Any = None  # for a worker of a Ray cluster, a function that calls a method of its actor (`Calls.ask`)
    machine: str = ""  # the name of its machine, for the operator
    has_standby: bool = False  # start a standby process on this machine that can replace the worker

    def command(self) -> list[str]:
        options = [("--preset", self.preset), ("--model", self.model), ("--pipeline", self.pipeline)]
        given = [part for name, value in options if value is not None for part in (name, value)]
        return [
            sys.executable,
            "-m",
            "backend.workers.main",
            *given,
            *self.options.to_arguments(),
            *(["--warm-up"] if self.warm_up else []),
            *(self.place.to_arguments() if self.place else []),
        ]


class WorkerProcess(Channel):
    """A worker process on this machine. Implements `Transport`, and is also the channel to the process."""

    def __init__(
        self, plan: WorkerPlan, log: Path, on_message: OnMessage, on_exit: OnExit, process: subprocess.Popen | None = None
    ):
        """Start a process, or use the given standby `process`."""
        self._on_message, self._on_exit = on_message, on_exit
        self._process = process or _start_process(plan.command(), plan, log)
        assert self._process.stdin is not None and self._process.stdout is not None, "it has pipes"
        self.pid = self._process.pid
        super().__init__(self._process.stdout, self._process.stdin)
        self._thread = threading.Thread(target=self._read, name="worker", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Return whether the process ends within `seconds`."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Let the process write its stacks to the log, then kill it with the processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGUSR1)
            time.sleep(_STACK_SECONDS)
            os.killpg(self._process.pid, signal.SIGKILL)

    def stop(self, request: type[Stop | ExitNow] = Stop, seconds: float = _STOP_SECONDS) -> None:
        """Ask the process to save its work and end, or with `ExitNow` to end without saving. Kill it if it does not end in time.
        Must not be called from a callback."""
        self.send(request())
        if not self.wait(seconds):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._thread.join(seconds)

    def _read(self) -> None:
        try:
            for message in self.receive():
                self._on_message(message)
        except Exception:  # after any error the job must end and the queue continue
            logger.exception("Killing the worker: its message could not be handled")
            self._process.kill()
        code = self._process.wait()
        self.close()
        self._on_exit(code)


class Standby:
    """A process that has imported everything, but uses no devices, and waits to replace a dead worker."""

    def __init__(self, plan: WorkerPlan, log: Path) -> None:
        """Start the process. Its output goes to the log. Raises: OSError."""
        self.log = log
        self._process = _start_process([*plan.command(), "--standby"], plan, log)
        self.pid = self._process.pid

    def become_worker(self, plan: WorkerPlan, on_message: OnMessage, on_exit: OnExit) -> WorkerProcess | None:
        """Turn the process into a worker. Return None if the process is dead. `plan` must equal the plan of the constructor,
        except for the preset and the warm-up."""
        if self._process.poll() is not None:
            self.stop()
            return None
        worker = WorkerProcess(plan, self.log, on_message, on_exit, self._process)
        worker.send(Begin(preset=plan.preset, warm_up=plan.warm_up))
        return worker

    def stop(self) -> None:
        """Kill the process, which has nothing to save."""
        self._process.kill()
        self._process.wait()
        for stream in filter(None, (self._process.stdin, self._process.stdout)):
            stream.close()


def _start_process(command: list[str], plan: WorkerPlan, log: Path) -> subprocess.Popen:
    """Start a new interpreter with pipes, in a session that the terminal's Ctrl+C does not reach. A fork of this process would
    copy the locks that its threads hold."""
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


def kill_stale_workers(data_dir: Path) -> list[int]:
    """Kill the workers of this data folder whose server is no longer their parent. Return their process ids.

    A worker ends when its server dies. But a worker that SIGSTOP has stopped cannot end, and would keep its memory and devices.
    Do nothing if the system does not list processes in /proc.
    """
    stale = []
    for folder in _PROCESSES.glob("[0-9]*"):
        try:
            entries = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
            if environment.get(DATA_VARIABLE) != str(data_dir) or SERVER_VARIABLE not in environment:
                continue
            _, parent, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:  # the process has ended, or belongs to another user
            continue
        # A worker leads its process group; the processes that it started do not.
        if group == folder.name and environment[SERVER_VARIABLE] != parent:
            stale.append(int(folder.name))
    for pid in stale:
        logger.warning("Killing worker %d: its server has exited", pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    return stale
