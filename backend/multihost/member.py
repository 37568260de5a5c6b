"""One of the other hosts of a worker on several: comes to the first host, runs a process when it says so, and comes again.

Its files lie in a temporary folder, which is gone with the connection; the job's own folder is the first host's.
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
from typing import Any, NoReturn

from backend.errors import ModelError, StudioError
from backend.multihost.versions import versions_here
from backend.multihost.wire import Gone, Wire, WrongSecret
from backend.schemas.worker import HostPlace, WorkerOptions
from backend.settings import Settings
from backend.workers.messages import Decide, Exit, ExitNow, Gather, Gathered, Hello, Message, Refused, Run, RunWithFiles, Start
from backend.workers.process import WorkerPlan, WorkerProcess
from backend.workers.watchdog import SILENCE_SECONDS

RETRY_SECONDS = 1.0
_CONNECT_SECONDS = 5.0
_LEAVE_SECONDS = 2.0  # a process has to end by itself

logger = logging.getLogger(__name__)


class MemberRefused(StudioError):
    """The first host does not take this member, and would not the next time either."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """Process `index` of `count`; the first host is reached at `address`, `port`."""

    index: int
    count: int
    address: str
    port: int
    secret: str = field(repr=False)
    settings: Settings

    def serve(self) -> NoReturn:
        """Takes part whenever the first host asks. Raises: MemberRefused."""
        is_told = False
        while True:
            try:
                connection = socket.create_connection((self.address, self.port), _CONNECT_SECONDS)
            except OSError as error:
                if not is_told:
                    logger.info("Waiting for the first host at %s:%d (%s)", self.address, self.port, error)
                is_told = True
            else:
                is_told = False
                self._take_part(connection)
            time.sleep(RETRY_SECONDS)

    def _take_part(self, connection: socket.socket) -> None:
        with contextlib.closing(Wire(connection)) as wire:
            try:
                wire.prove(self.secret, is_first=False)
                wire.send(Hello(index=self.index, count=self.count, versions=versions_here()))
                with tempfile.TemporaryDirectory(prefix="studio-member-") as folder:
                    self._follow(wire, Path(folder))
            except WrongSecret:
                raise MemberRefused(
                    "the hosts' secret",
                    "is another one on the first host",
                    "give STUDIO_HOSTS_SECRET the same value on every host",
                ) from None
            except Gone as error:
                logger.info("The first host has ended the connection (%s)", error)

    def _follow(self, wire: Wire, folder: Path) -> None:
        """Does what the first host says until it is gone. Raises: Gone, MemberRefused."""
        process: _Process | None = None
        try:
            while True:
                message, files = wire.receive()
                if isinstance(message, Refused):
                    raise MemberRefused("this member", f"is refused: {message.reason}", "then start it again")
                if isinstance(message, Start):
                    process = _Process(self, wire, message)
                elif isinstance(message, RunWithFiles) and process is not None:
                    process.worker.send(_job_here(message, files, folder))
                elif isinstance(message, Decide | Gathered) and process is not None:
                    process.worker.send(message)
        finally:
            if process is not None:
                process.end()


class _Process:
    """This host's process, and what it says to the first one."""

    def __init__(self, member: Member, wire: Wire, start: Start):
        self._wire, self._heard = wire, time.monotonic()
        self._is_over = threading.Event()
        self.worker = WorkerProcess(_plan(member, start), _log(member), self._receive, self._handle_exit)
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def end(self) -> None:
        """Ends it: the first host keeps what was done."""
        self._is_over.set()
        self.worker.send(ExitNow())
        if not self.worker.wait(_LEAVE_SECONDS):
            with contextlib.suppress(ProcessLookupError):
                self.worker.kill_at_once()
            self.worker.wait(_LEAVE_SECONDS)

    def _receive(self, message: Message) -> None:
        self._heard = time.monotonic()
        if isinstance(message, Gather):
            self._wire.send(message)

    def _handle_exit(self, code: int) -> None:
        self._is_over.set()
        self._wire.send(Exit(code=code))

    def _watch(self) -> None:
        """Ends the process if it stands still: it shows each second that it does not."""
        while not self._is_over.wait(RETRY_SECONDS):
            if time.monotonic() - self._heard > SILENCE_SECONDS:
                logger.error("This host's process gave no sign of life for %.0f s and is ended", SILENCE_SECONDS)
                self.worker.kill()


def _plan(member: Member, start: Start) -> WorkerPlan:
    place = HostPlace(index=member.index, count=member.count, coordinator=f"{member.address}:{start.port}")
    options: dict[str, Any] = {**start.options}
    return WorkerPlan(
        preset=start.preset,
        model=start.model,
        warm_up=start.warm_up,
        settings=member.settings,
        pipeline=start.pipeline,
        options=WorkerOptions(**options),
        name=f"member-{member.index}",
        place=place,
    )


def _log(member: Member) -> Path:
    """The process's log; that of the process before it is kept."""
    folder = member.settings.logs_dir
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"member-{member.index}.log"
    if log.exists():
        log.replace(folder / f"member-{member.index}-before.log")
    return log


def _job_here(message: RunWithFiles, files: Sequence[bytes], folder: Path) -> Run:
    """The job in a folder of its own, with its files; those of jobs before the last one are removed."""
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
    return Run(job_id=message.job_id, request=request, folder=here)
