"""The link to a worker on several hosts: its first process on this one, and the hub through which all of them keep in step.

The members (`backend.multihost.member`, one on each other host) come to the hub by themselves, again and again. When all are here
the processes are started together. The end of one ends all: the supervisor then opens the next link, to which the members come.
"""

import contextlib
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from backend.media.sound import MODEL_SOUND
from backend.multihost.versions import difference, versions_here
from backend.multihost.wire import Gone, Wire, WrongSecret
from backend.schemas.live import FOLDER
from backend.schemas.shots import FOLDER as SHOTS
from backend.schemas.shots import LAST, LAST_FRAMES, LOOK, RESULT
from backend.schemas.worker import HostPlace, Hosts, WorkerStatus
from backend.workers.exit_reasons import HOST_LOST, describe_exit_code
from backend.workers.messages import (
    Decide,
    Exit,
    Exiting,
    ExitNow,
    Gather,
    Gathered,
    Hello,
    Message,
    Refused,
    Run,
    RunWithFiles,
    Start,
    Status,
)
from backend.workers.multihost_sync import FAILED
from backend.workers.process import WorkerPlan, WorkerProcess

DISAGREEMENT_SECONDS = 30.0  # after one host has failed, until all must have failed alike
_REPORT_SECONDS = 2.0
_END_SECONDS = 2.0  # the first process has to end by itself, when another is gone
_GREETING_SECONDS = 8.0
_MOST_STRANGERS = 16  # that have not shown yet that they know the secret
_STAGES = ("stage1_*.safetensors", "stage2_*.safetensors")
_OF_SHOTS = tuple(f"{SHOTS}/*/{name}" for name in (*_STAGES, RESULT, LAST, LAST_FRAMES, LOOK, MODEL_SOUND))
_SENT_FILES = (*_STAGES, f"{FOLDER}/*.jsonl", *_OF_SHOTS)  # of a job that goes on

logger = logging.getLogger(__name__)


class MultihostTransport:
    """See `backend.worker_pool.transports.Transport`."""

    def __init__(self, plan: WorkerPlan, log: Path, on_message: Callable[[Message], None], on_exit: Callable[[int], None]):
        self._plan, self._log, self._on_message, self._on_exit = plan, log, on_message, on_exit
        assert plan.hosts is not None, "this link is for several hosts"
        self._hosts: Hosts = plan.hosts
        self._lock = threading.RLock()
        self._members: dict[int, Wire] = {}
        self._first: WorkerProcess | None = None
        self._waiting: list[Message] = []  # until the processes are started
        self._gathering: dict[int, Gather] = {}  # by process
        self._disagreement: threading.Timer | None = None
        self._end_code: int | None = None  # told in place of the first process's
        self._is_ending = threading.Event()
        self._strangers: list[tuple[str, socket.socket]] = []  # by address, the oldest first
        self._door = socket.create_server((self._hosts.address, self._hosts.port))
        self._thread = threading.Thread(target=self._open, name="hosts", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """The first process's id; None while members are missing."""
        return self._first.pid if self._first else None

    def send(self, message: Message) -> None:
        """See `Transport`. Members hear of jobs alone: all else they learn from the first process."""
        with self._lock:
            if self._first is None:
                self._waiting.append(message)
                return
            self._first.send(message)
            if isinstance(message, Run):
                job, files = _job_for_members(message)
                for wire in self._members.values():
                    wire.send(job, files)

    def kill(self) -> None:
        """See `Transport`."""
        self._is_ending.set()
        if self._first is not None:
            self._first.kill()

    def stop(self) -> None:
        """See `Transport`."""
        self._is_ending.set()
        self._thread.join()
        if self._first is not None:
            self._first.stop()
        self._close()

    def _open(self) -> None:
        """Waits for the members, then starts all; runs in a thread of its own."""
        try:
            with self._door:
                while not self._is_ending.is_set():
                    self._admit_all()
                    if self._start():
                        return
        except Exception:
            logger.exception("The worker's processes could not be started")
        self._close()
        self._on_exit(1)

    def _admit_all(self) -> None:
        self._door.settimeout(0.2)
        reported = -_REPORT_SECONDS
        while (missing := self._missing()) and not self._is_ending.is_set():
            if time.monotonic() - reported >= _REPORT_SECONDS:
                reported = time.monotonic()
                self._on_message(Status(status=self._waiting_for(missing)))
            with contextlib.suppress(TimeoutError):
                connection, address = self._door.accept()
                self._make_room(connection, address[0])
                threading.Thread(target=self._meet, args=(connection, address[0]), name="member", daemon=True).start()

    def _make_room(self, connection: socket.socket, address: str) -> None:
        """Counts a stranger. If there are too many, the oldest one goes of the address from which most have come: those who say
        nothing keep nobody out."""
        with self._lock:
            self._strangers.append((address, connection))
            if len(self._strangers) <= _MOST_STRANGERS:
                return
            [(crowded, _)] = Counter(place for place, _ in self._strangers).most_common(1)
            oldest = next(one for one in self._strangers if one[0] == crowded)
            self._strangers.remove(oldest)
        with contextlib.suppress(OSError):
            oldest[1].shutdown(socket.SHUT_RDWR)  # its own thread closes it

    def _forget_stranger(self, connection: socket.socket) -> None:
        with self._lock:
            self._strangers = [one for one in self._strangers if one[1] is not connection]

    def _missing(self) -> list[int]:
        with self._lock:
            return [index for index in range(1, self._hosts.count) if index not in self._members]

    def _waiting_for(self, missing: list[int]) -> WorkerStatus:
        which = ", ".join(map(str, missing))
        detail = f"Waiting for the other hosts: number {which} of {self._hosts.count} (`app.py member` there; this one is 0)"
        return WorkerStatus(state="starting", detail=detail)

    def _meet(self, connection: socket.socket, address: str) -> None:
        """Lets in whoever knows the secret and fits, and listens to it until it is gone."""
        try:
            wire = Wire(connection)
        except OSError:
            self._forget_stranger(connection)
            connection.close()
            return
        with contextlib.closing(wire):
            try:
                hello = self._greet(wire, connection)
                refusal = self._refusal(hello)
                if not refusal and isinstance(hello, Hello):
                    self._listen(hello.index, wire)
                    return
                logger.warning("The member at %s is refused: %s", address, refusal)
                wire.send(Refused(reason=refusal))
            except WrongSecret:
                logger.warning("Somebody at %s does not know the hosts' secret", address)
            except Gone as error:
                logger.info("A connection from %s ended: %s", address, error)

    def _greet(self, wire: Wire, connection: socket.socket) -> Message:
        """What a member says of itself, after it has shown that it knows the secret. Raises: WrongSecret, Gone."""
        clock = threading.Timer(_GREETING_SECONDS, wire.close)
        clock.daemon = True
        clock.start()
        try:
            wire.prove(self._hosts.secret, is_first=True)
            return wire.receive()[0]
        finally:
            clock.cancel()
            self._forget_stranger(connection)

    def _refusal(self, hello: Message) -> str:
        """Why this member cannot take part; "" if it can."""
        if not isinstance(hello, Hello):
            return "it does not say which process it is, of how many, with which versions"
        index, count = hello.index, hello.count
        if count != self._hosts.count:
            return f"process {index} counts {count} processes, and the first host {self._hosts.count}: both must give one number"
        if index not in range(1, count):
            return f"process {index} is none of 1 to {count - 1}: each other host must have a number of its own"
        return difference(versions_here(), hello.versions)

    def _listen(self, index: int, wire: Wire) -> None:
        with self._lock:
            before, self._members[index] = self._members.get(index), wire
        if before is not None:
            before.close()  # it was cut off, and comes again; two that give one number push each other out
        why, end_code = "does not answer any more", HOST_LOST
        try:
            while True:
                message, _ = wire.receive()
                if isinstance(message, Gather):
                    self._gather(index, message)
                elif isinstance(message, Exit):
                    why, end_code = describe_exit_code(message.code), None
                    break
        except Gone:
            pass
        with self._lock:
            if self._members.get(index) is not wire:
                return
            del self._members[index]
        if self._first is not None:
            self._end_all(f"Process {index} of the {self._hosts.count} hosts {why}", end_code)

    def _start(self) -> bool:
        """Starts all processes, if no member has left again."""
        hosts = self._hosts
        meeting = hosts.port + 1
        reachable = "127.0.0.1" if hosts.address in ("", "0.0.0.0", "::") else hosts.address
        own = HostPlace(
            index=0, count=hosts.count, coordinator=f"{reachable}:{meeting}", bind=f"{hosts.address or '0.0.0.0'}:{meeting}"
        )
        start = Start(
            preset=self._plan.preset,
            model=self._plan.model,
            warm_up=self._plan.warm_up,
            pipeline=self._plan.pipeline,
            options=self._plan.options.mesh | {"resident_chips_gb": self._plan.options.resident_chips_gb},
            port=meeting,
        )
        with self._lock:
            if self._is_ending.is_set() or len(self._members) < hosts.count - 1:
                return False
            self._first = WorkerProcess(replace(self._plan, place=own), self._log, self._receive, self._handle_exit)
            for wire in self._members.values():
                wire.send(start)
            waiting, self._waiting = self._waiting, []
            for message in waiting:
                self.send(message)
        return True

    def _receive(self, message: Message) -> None:
        """A message of the first process."""
        if isinstance(message, Decide):
            with self._lock:
                for wire in self._members.values():
                    wire.send(message)
        elif isinstance(message, Gather):
            self._gather(0, message)
        else:
            self._on_message(message)

    def _gather(self, index: int, message: Gather) -> None:
        """Answers all hosts when the last has come. One that has failed alone, or otherwise than the others, ends all."""
        with self._lock:
            self._gathering[index] = message
            if len(self._gathering) == self._hosts.count:
                all_hosts = [self._gathering[number] for number in range(self._hosts.count)]
                self._gathering.clear()
                self._stop_clock()
                if len({one.what for one in all_hosts}) == 1:
                    self._answer(Gathered(values=[one.value for one in all_hosts]))
                    return
            else:
                if message.what.startswith(FAILED) and self._disagreement is None:
                    reason = f"Process {index} of the {self._hosts.count} hosts {message.what}; its log says why"
                    self._disagreement = threading.Timer(DISAGREEMENT_SECONDS, self._end_all, args=(reason,))
                    self._disagreement.daemon = True
                    self._disagreement.start()
                return
        words = ", ".join(f"{number} {one.what}" for number, one in enumerate(all_hosts))
        self._end_all(f"The hosts did not do the same ({words}); their logs say why")

    def _answer(self, message: Message) -> None:
        if self._first is not None:
            self._first.send(message)
        for wire in self._members.values():
            wire.send(message)

    def _end_all(self, reason: str, end_code: int | None = None) -> None:
        """Ends the first process; its end ends the others. An `end_code` is told in place of the first process's own."""
        with self._lock:
            if self._is_ending.is_set():
                return
            self._end_code = end_code
            self._is_ending.set()
        self._on_message(Exiting(reason=reason))
        first = self._first
        assert first is not None, "the link has begun"
        first.send(ExitNow())
        if not first.wait(_END_SECONDS):
            first.kill()

    def _handle_exit(self, code: int) -> None:
        self._is_ending.set()
        self._close()
        self._on_exit(code if self._end_code is None else self._end_code)

    def _close(self) -> None:
        """Lets the members go: each ends its process, and comes to the next link."""
        with self._lock:
            self._stop_clock()
            members, self._members = list(self._members.values()), {}
        for wire in members:
            wire.close()

    def _stop_clock(self) -> None:
        if self._disagreement is not None:
            self._disagreement.cancel()
            self._disagreement = None


def free_port(address: str) -> int:
    """A port at which a link can wait for its members, and whose next one is free too. Raises: OSError if the address is none of
    this machine's."""
    while True:
        with socket.create_server((address, 0)) as one:
            port = one.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError), socket.create_server((address, port + 1)):
                return port


def _job_for_members(job: Run) -> tuple[RunWithFiles, list[bytes]]:
    """A job as its members hear of it, and the files that they need: the request's inputs, and what was done before."""
    inputs = {role: list(map(Path, paths)) for role, paths in job.request.inputs().items()}
    given = [path for paths in inputs.values() for path in paths]
    begun = [path for pattern in _SENT_FILES for path in sorted(job.folder.glob(pattern))]
    message = RunWithFiles(
        job_id=job.job_id,
        request=job.request,
        inputs={role: [path.name for path in paths] for role, paths in inputs.items()},
        names=[*(path.name for path in given), *(str(path.relative_to(job.folder)) for path in begun)],
    )
    return message, [path.read_bytes() for path in (*given, *begun)]
