"""Run a worker on several hosts: the first process on this host, and the hub that synchronizes all processes.

The members (`backend.multihost.member`) connect to the hub. When all are connected, the processes start together. If one
process ends, all end. The worker's supervisor then creates a new transport, and the members connect to the new hub.
"""

import contextlib
import logging
import socket
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from backend.media.sound import MODEL_SOUND
from backend.multihost.versions import describe_difference, versions_here
from backend.multihost.wire import ConnectionLost, Wire, WrongSecret
from backend.schemas.live import FOLDER
from backend.schemas.shots import FOLDER as SHOTS
from backend.schemas.shots import LAST, LAST_FRAMES, LOOK, RESULT
from backend.schemas.worker import HostPlace, Hosts, WorkerStatus
from backend.workers import messages
from backend.workers.exit_reasons import HOST_LOST, describe_exit_code
from backend.workers.multihost_sync import FAILED
from backend.workers.process import OnExit, OnMessage, WorkerPlan, WorkerProcess

# After a job failed on one host, every other host must reach the end of the job within this time. Otherwise all processes are
# ended.
DISAGREEMENT_SECONDS = 30.0
_REPORT_SECONDS = 2.0
_END_SECONDS = 2.0  # the longest wait for the first process to end itself after another host failed
_AUTHENTICATE_SECONDS = 8.0
_MOST_UNAUTHENTICATED = 16  # the most connections that have not authenticated yet
_STAGES = ("stage1_*.safetensors", "stage2_*.safetensors")
_OF_SHOTS = tuple(f"{SHOTS}/*/{name}" for name in (*_STAGES, RESULT, LAST, LAST_FRAMES, LOOK, MODEL_SOUND))
_SENT_FILES = (*_STAGES, f"{FOLDER}/*.jsonl", *_OF_SHOTS)  # stored progress, which members need to continue a job

logger = logging.getLogger(__name__)


class MultihostTransport:
    def __init__(self, plan: WorkerPlan, log: Path, on_message: OnMessage, on_exit: OnExit):
        self._plan, self._log, self._on_message, self._on_exit = plan, log, on_message, on_exit
        assert plan.hosts is not None, "this transport is for several hosts"
        self._hosts: Hosts = plan.hosts
        self._lock = threading.RLock()
        self._members: dict[int, Wire] = {}
        self._first: WorkerProcess | None = None
        self._waiting: list[messages.Message] = []  # messages to send after the processes have started
        self._gathering: dict[int, messages.Gather] = {}  # the waiting request of each process at the barrier, by process number
        self._disagreement: threading.Timer | None = None
        self._end_code: int | None = None  # reported in place of the first process's exit code
        self._is_ending = threading.Event()
        # (address, socket) of connections that have not authenticated yet, oldest first
        self._unauthenticated: list[tuple[str, socket.socket]] = []
        self._listener = socket.create_server((self._hosts.address, self._hosts.port))
        self._thread = threading.Thread(target=self._open, name="hosts", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        return self._first.pid if self._first else None

    def send(self, message: messages.Message) -> None:
        """Send a message to the first process, and jobs to the members too. Its decisions tell the members of other messages."""
        with self._lock:
            if self._first is None:
                self._waiting.append(message)
                return
            self._first.send(message)
            if isinstance(message, messages.Run):
                job, files = _job_for_members(message)
                for wire in self._members.values():
                    wire.send(job, files)

    def kill(self) -> None:
        """Kill the first process. The other processes then end."""
        self._is_ending.set()
        if self._first is not None:
            self._first.kill()

    def stop(self) -> None:
        """Stop the first process and close the connections to the members."""
        self._is_ending.set()
        self._thread.join()
        if self._first is not None:
            self._first.stop()
        self._close()

    def _open(self) -> None:
        try:
            with self._listener:
                self._listener.settimeout(0.2)
                reported = -_REPORT_SECONDS
                while not self._is_ending.is_set():
                    with self._lock:
                        missing = [str(index) for index in range(1, self._hosts.count) if index not in self._members]
                    if not missing and self._start():
                        return
                    if not missing:
                        reported = -_REPORT_SECONDS
                        continue
                    if time.monotonic() - reported >= _REPORT_SECONDS:
                        reported = time.monotonic()
                        which = f"number {', '.join(missing)} of {self._hosts.count}"
                        detail = f"Waiting for the other hosts: {which} (`app.py member` there; this one is 0)"
                        self._on_message(messages.Status(status=WorkerStatus(state="starting", detail=detail)))
                    with contextlib.suppress(TimeoutError):
                        connection, (address, *_) = self._listener.accept()
                        self._limit_unauthenticated(connection, address)
                        work = self._handle_connection
                        threading.Thread(target=work, args=(connection, address), name="member", daemon=True).start()
        except Exception:
            logger.exception("The worker's processes could not be started")
        self._close()
        self._on_exit(1)

    def _limit_unauthenticated(self, connection: socket.socket, address: str) -> None:
        """Above the limit, close the oldest connection of the address with most, so that silent clients cannot block members."""
        with self._lock:
            self._unauthenticated.append((address, connection))
            if len(self._unauthenticated) <= _MOST_UNAUTHENTICATED:
                return
            [(crowded, _)] = Counter(place for place, _ in self._unauthenticated).most_common(1)
            oldest = next(one for one in self._unauthenticated if one[0] == crowded)
            self._unauthenticated.remove(oldest)
        with contextlib.suppress(OSError):
            oldest[1].shutdown(socket.SHUT_RDWR)  # the thread of this connection then closes the socket

    def _handle_connection(self, connection: socket.socket, address: str) -> None:
        """Authenticate a connection, check its versions, and serve the member until it disconnects."""
        try:
            wire = Wire(connection)
        except OSError:
            with self._lock:
                self._unauthenticated = [one for one in self._unauthenticated if one[1] is not connection]
            connection.close()
            return
        timer = threading.Timer(_AUTHENTICATE_SECONDS, wire.close)
        timer.daemon = True
        with contextlib.closing(wire):
            try:
                timer.start()
                try:
                    wire.authenticate(self._hosts.secret, is_first=True)
                    hello, _ = wire.receive()
                finally:
                    timer.cancel()
                    with self._lock:
                        self._unauthenticated = [one for one in self._unauthenticated if one[1] is not connection]
                count = self._hosts.count
                if not isinstance(hello, messages.Hello):
                    refusal = "its first message must state its process number, the number of processes and its versions"
                elif hello.count != count:
                    expected = f"process {hello.index} expects {hello.count} processes, the first host {count}"
                    refusal = f"{expected}: give both the same number"
                elif hello.index not in range(1, count):
                    refusal = f"process {hello.index} must be from 1 to {count - 1}: give each other host a different number"
                elif not (refusal := describe_difference(versions_here(), hello.versions)):
                    self._serve_member(hello.index, wire)
                    return
                logger.warning("The member at %s is refused: %s", address, refusal)
                wire.send(messages.Refused(reason=refusal))
            except WrongSecret:
                logger.warning("A connection from %s was refused: it does not know the hosts' secret", address)
            except ConnectionLost as error:
                logger.info("A connection from %s ended: %s", address, error)

    def _serve_member(self, index: int, wire: Wire) -> None:
        with self._lock:
            before, self._members[index] = self._members.get(index), wire
        if before is not None:
            before.close()  # the old connection of a member that reconnected, or of another host with the same number
        why, end_code = "does not answer any more", HOST_LOST
        try:
            while True:
                message, _ = wire.receive()
                if isinstance(message, messages.Gather):
                    self._handle_gather(index, message)
                elif isinstance(message, messages.Exit):
                    why, end_code = describe_exit_code(message.code), None
                    break
        except ConnectionLost:
            pass
        with self._lock:
            if self._members.get(index) is not wire:
                return
            del self._members[index]
        if self._first is not None:
            self._end_all(f"Process {index} of the {self._hosts.count} hosts {why}", end_code)

    def _start(self) -> bool:
        """Start all processes. Return False if a member has disconnected."""
        hosts = self._hosts
        meeting = hosts.port + 1
        reachable = "127.0.0.1" if hosts.address in ("", "0.0.0.0", "::") else hosts.address
        own = HostPlace(
            index=0, count=hosts.count, coordinator=f"{reachable}:{meeting}", bind=f"{hosts.address or '0.0.0.0'}:{meeting}"
        )
        start = messages.Start(
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

    def _receive(self, message: messages.Message) -> None:
        if isinstance(message, messages.Decide):
            with self._lock:
                for wire in self._members.values():
                    wire.send(message)
        elif isinstance(message, messages.Gather):
            self._handle_gather(0, message)
        else:
            self._on_message(message)

    def _handle_gather(self, index: int, message: messages.Gather) -> None:
        """Answer all hosts when every host has reached the barrier. End all processes if the hosts name different barriers."""
        with self._lock:
            self._gathering[index] = message
            if len(self._gathering) < self._hosts.count:
                if message.what.startswith(FAILED) and self._disagreement is None:
                    reason = f"Process {index} of the {self._hosts.count} hosts {message.what}; its log says why"
                    self._disagreement = threading.Timer(DISAGREEMENT_SECONDS, self._end_all, args=(reason,))
                    self._disagreement.daemon = True
                    self._disagreement.start()
                return
            all_hosts = [self._gathering[number] for number in range(self._hosts.count)]
            self._gathering.clear()
            self._stop_timer()
            if len({one.what for one in all_hosts}) == 1:
                gathered = messages.Gathered(values=[one.value for one in all_hosts])
                if self._first is not None:
                    self._first.send(gathered)
                for wire in self._members.values():
                    wire.send(gathered)
                return
        words = ", ".join(f"{number} {one.what}" for number, one in enumerate(all_hosts))
        self._end_all(f"The hosts did not do the same ({words}); their logs say why")

    def _end_all(self, reason: str, end_code: int | None = None) -> None:
        """End the first process; the other processes then end. `end_code` is reported in place of its exit code."""
        with self._lock:
            if self._is_ending.is_set():
                return
            self._end_code = end_code
            self._is_ending.set()
        self._on_message(messages.Exiting(reason=reason))
        first = self._first
        assert first is not None, "the processes have started"
        first.send(messages.ExitNow())
        if not first.wait(_END_SECONDS):
            first.kill()

    def _handle_exit(self, code: int) -> None:
        self._is_ending.set()
        self._close()
        self._on_exit(code if self._end_code is None else self._end_code)

    def _close(self) -> None:
        """Disconnect the members. Each member ends its process and then connects to the hub of the next transport."""
        with self._lock:
            self._stop_timer()
            members, self._members = list(self._members.values()), {}
        for wire in members:
            wire.close()

    def _stop_timer(self) -> None:
        if self._disagreement is not None:
            self._disagreement.cancel()
            self._disagreement = None


def free_port(address: str) -> int:
    """Return the first of two consecutive free ports of `address`. Raises: OSError if this machine does not have `address`."""
    while True:
        with socket.create_server((address, 0)) as one:
            port = one.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError), socket.create_server((address, port + 1)):
                return port


def _job_for_members(job: messages.Run) -> tuple[messages.RunWithFiles, list[bytes]]:
    """Return the message that gives a job to the members, and the contents of its inputs and its stored progress."""
    inputs = {role: list(map(Path, paths)) for role, paths in job.request.inputs().items()}
    given = [path for paths in inputs.values() for path in paths]
    begun = [path for pattern in _SENT_FILES for path in sorted(job.folder.glob(pattern))]
    message = messages.RunWithFiles(
        job_id=job.job_id,
        request=job.request,
        inputs={role: [path.name for path in paths] for role, paths in inputs.items()},
        names=[*(path.name for path in given), *(str(path.relative_to(job.folder)) for path in begun)],
        is_draft=job.is_draft,
    )
    return message, [path.read_bytes() for path in (*given, *begun)]
