"""Run one process of a multihost worker, on a host other than the first, which requests its start.

The member reconnects whenever the connection ends. It stores a job's files in a temporary folder until then.
"""

import contextlib
import logging
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

from backend.errors import ModelError, StudioError
from backend.multihost.versions import versions_here
from backend.multihost.wire import ConnectionLost, Wire, WrongSecret
from backend.schemas.worker import HostPlace, WorkerOptions
from backend.settings import Settings
from backend.workers.messages import Decide, Exit, ExitNow, Gather, Gathered, Hello, Message, Refused, Run, RunWithFiles, Start
from backend.workers.process import WorkerPlan, WorkerProcess
from backend.workers.watchdog import SILENCE_SECONDS

RETRY_SECONDS = 1.0
_CONNECT_SECONDS = 5.0
_LEAVE_SECONDS = 2.0  # the longest wait for a process to end by itself

logger = logging.getLogger(__name__)


class MemberRefused(StudioError):
    """The first host refused this member. Reconnecting does not help."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """Runs process number `index` of the worker's `count` processes. The first host listens at `address` and `port`."""

    index: int
    count: int
    address: str
    port: int
    secret: str = field(repr=False)
    settings: Settings

    def serve(self) -> NoReturn:
        """Connect to the first host and handle its messages. Reconnect whenever the connection ends. Raises: MemberRefused."""
        is_logged = False
        while True:
            try:
                connection = socket.create_connection((self.address, self.port), _CONNECT_SECONDS)
            except OSError as error:
                if not is_logged:
                    logger.info("Waiting for the first host at %s:%d (%s)", self.address, self.port, error)
                is_logged = True
            else:
                is_logged = False
                self._join(connection)
            time.sleep(RETRY_SECONDS)

    def _join(self, connection: socket.socket) -> None:
        with contextlib.closing(Wire(connection)) as wire:
            try:
                wire.authenticate(self.secret, is_first=False)
                wire.send(Hello(index=self.index, count=self.count, versions=versions_here()))
                with tempfile.TemporaryDirectory(prefix="studio-member-") as folder:
                    self._run_messages(wire, Path(folder))
            except WrongSecret:
                fix = "give STUDIO_HOSTS_SECRET the same value on every host"
                raise MemberRefused("the hosts' secret", "is another one on the first host", fix) from None
            except ConnectionLost as error:
                logger.info("The first host has ended the connection (%s)", error)

    def _run_messages(self, wire: Wire, folder: Path) -> None:
        process: _Process | None = None
        try:
            while True:
                message, files = wire.receive()
                if isinstance(message, Refused):
                    raise MemberRefused("this member", f"is refused: {message.reason}", "then start it again")
                if isinstance(message, Start):
                    process = _Process(self, wire, message)
                elif isinstance(message, RunWithFiles) and process is not None:
                    process.worker.send(_store_job(message, files, folder))
                elif isinstance(message, Decide | Gathered) and process is not None:
                    process.worker.send(message)
        finally:
            if process is not None:
                process.end()


class _Process:
    """The worker process on this host. Its `Gather` messages and its exit code are forwarded to the first host."""

    def __init__(self, member: Member, wire: Wire, start: Start):
        self._wire, self._last_report = wire, time.monotonic()
        self._is_over = threading.Event()
        plan = WorkerPlan(
            preset=start.preset,
            model=start.model,
            warm_up=start.warm_up,
            settings=member.settings,
            pipeline=start.pipeline,
            options=WorkerOptions(**cast(dict[str, Any], start.options)),
            name=f"member-{member.index}",
            place=HostPlace(index=member.index, count=member.count, coordinator=f"{member.address}:{start.port}"),
        )
        folder = member.settings.logs_dir
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / f"{plan.name}.log"
        if log.exists():
            log.replace(folder / f"{plan.name}-before.log")
        self.worker = WorkerProcess(plan, log, self._receive, self._handle_exit)
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def end(self) -> None:
        self._is_over.set()
        self.worker.stop(ExitNow, _LEAVE_SECONDS)

    def _receive(self, message: Message) -> None:
        self._last_report = time.monotonic()
        if isinstance(message, Gather):
            self._wire.send(message)

    def _handle_exit(self, code: int) -> None:
        self._is_over.set()
        self._wire.send(Exit(code=code))

    def _watch(self) -> None:
        """Kill the process if it hangs. A running process sends a heartbeat each second."""
        while not self._is_over.wait(RETRY_SECONDS):
            if time.monotonic() - self._last_report > SILENCE_SECONDS:
                logger.error("Killing this host's process: no heartbeat for %.0f s", SILENCE_SECONDS)
                self.worker.kill()


def _store_job(message: RunWithFiles, files: Sequence[bytes], folder: Path) -> Run:
    """Write the job's files into a new folder and return the job. Delete the folders of earlier jobs, except the latest."""
    here = folder / Path(message.job_id).name
    earlier = sorted(folder.iterdir(), key=lambda old: old.stat().st_mtime)
    for old in (*earlier[:-1], *(one for one in earlier[-1:] if one == here)):
        shutil.rmtree(old)
    here.mkdir()
    for name, data in zip(message.names, files, strict=True):
        path = here / name
        if not path.resolve().is_relative_to(here.resolve()):
            raise ModelError(f"The first host sends a file named {name!r}", "outside its job's folder", "update both hosts")
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(data)
    inputs = {role: [str(here / Path(name).name) for name in names] for role, names in message.inputs.items()}
    request = message.request.with_inputs(inputs) if inputs else message.request
    return Run(job_id=message.job_id, request=request, folder=here, is_draft=message.is_draft)
