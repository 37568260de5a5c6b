"""A worker on a node of the cluster: runs the same worker process as one machine does, and hands on messages and files.

An instance of `NodeWorker` is a Ray actor on that node, the first host of its slice; a `NodeMember` is one on each other host, if
the slice has several. Neither imports Ray: `backend.cluster.nodes` makes them actors.
"""

import shutil
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from backend.cluster.transfer import PIECE_BYTES, Changes, Inbox, Piece, check_name, move_message_paths
from backend.multihost.member import Member
from backend.multihost.transport import MultihostTransport, free_port
from backend.multihost.versions import fingerprint
from backend.schemas.worker import Hosts
from backend.settings import Settings, from_environment
from backend.shares import Share
from backend.workers.messages import JobEvent, Message, Run
from backend.workers.process import WorkerPlan, WorkerProcess
from backend.workers.stale_processes import kill_stale_workers

FOLDER = "cluster"
_WAIT_SECONDS = 1.0  # for something to hand on
_LOG_BYTES = 2**18  # at most, of the worker's log at a time


@dataclass(frozen=True, kw_only=True)
class LogText:
    """What the worker has written to its log since the last time."""

    data: bytes


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The worker process is gone, with this exit code. Nothing follows."""

    code: int


Item = Message | Piece | LogText | Ended


class NodeWorker:
    """One worker of the studio, on this node; its methods are called from the studio, several at the same time.

    Everything lies in the node's own data folder (STUDIO_DATA_DIR there, else `data` in the project), in `cluster/NAME`.
    """

    def __init__(self, name: str):
        self._settings = from_environment()
        self._folder = self._settings.data_dir / FOLDER / check_name(name)
        self._relay: Relay | None = None

    def fingerprint(self) -> str:
        """That of the project on this node."""
        return fingerprint()

    def free_port(self, address: str) -> int:
        """Where the hosts of this node's slice can meet. Raises: OSError if this node does not have the address."""
        return free_port(address)

    def open(self, plan: WorkerPlan) -> None:
        """Starts the worker of the plan, in place of one that is still there. Raises: OSError."""
        if self._relay is not None:
            self._relay.worker.kill()
            self._relay.worker.stop()  # it gives back the port on which it waited for other hosts
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._relay = Relay(local_plan(plan, self._settings), self._folder)

    def begin(self, job_id: str) -> None:
        """Makes an empty folder for a job, in place of those of earlier ones."""
        self._started_relay().begin(job_id)

    def put(self, piece: Piece) -> None:
        """Takes a piece of the job's input files, or of what was done of it elsewhere."""
        self._started_relay().put(piece)

    def send(self, message: Message) -> None:
        """Hands a message to the worker."""
        self._started_relay().send(message)

    def take(self, number: int) -> list[Item]:
        """Batch `number`, from 1, of what the worker says, in order; the same number again gives the same batch again."""
        return self._started_relay().take(number)

    def kill(self) -> None:
        """Ends a worker that does not answer."""
        self._started_relay().worker.kill()

    def _started_relay(self) -> "Relay":
        assert self._relay is not None, "the studio opens the worker first"
        return self._relay

    def stop(self) -> None:
        """Asks the worker to keep its work and to end, and ends it if it does not."""
        if self._relay is not None:
            self._relay.worker.stop()


class NodeMember:
    """One of the other hosts of a worker on several."""

    def __init__(self) -> None:
        self._settings = from_environment()

    def fingerprint(self) -> str:
        """That of the project on this node."""
        return fingerprint()

    def serve(self, hosts: Hosts, index: int) -> None:
        """Takes part as process `index` whenever the first host asks, until the actor is ended. Raises: MemberRefused."""
        kill_stale_workers(self._settings.data_dir)
        Member(
            index=index,
            count=hosts.count,
            address=hosts.address,
            port=hosts.port,
            secret=hosts.secret,
            settings=self._settings,
        ).serve()


class Relay:
    """The conversation with one worker: what it says waits here until the studio takes it.

    What waits is small: the pieces of files are read when they are taken.
    """

    def __init__(self, plan: WorkerPlan, folder: Path):
        self._runs, self._log = folder / "runs", folder / "worker.log"
        self._changed = threading.Condition()
        self._waiting: deque[Iterator[Item]] = deque()
        self._number, self._batch = 0, []  # taken last
        self._log_bytes = 0  # handed on
        self._job: _RemoteJob | None = None
        start = MultihostTransport if plan.hosts else WorkerProcess
        self.worker = start(plan, self._log, self._receive, self._end)

    def begin(self, job_id: str) -> None:
        """Makes an empty folder for a job, in place of those of earlier ones."""
        shutil.rmtree(self._runs, ignore_errors=True)
        self._folder_of(job_id).mkdir(parents=True)

    def put(self, piece: Piece) -> None:
        """Writes a piece of one of the job's files. Raises: ValueError, OSError."""
        Inbox(self._folder_of(piece.job_id)).take(piece)

    def send(self, message: Message) -> None:
        """Hands a message to the worker; a job's folder is here, wherever the studio has it."""
        if isinstance(message, Run):
            folder = self._folder_of(message.job_id)
            changes = Changes(message.job_id, folder)
            self._job = _RemoteJob(job_id=message.job_id, there=str(message.folder), here=str(folder), changes=changes)
            message = move_message_paths(message, self._job.there, self._job.here)
        self.worker.send(message)

    def take(self, number: int) -> list[Item]:
        """Batch `number` of what has been said, of about `PIECE_BYTES`; empty if nothing is said for a second."""
        with self._changed:
            if number != self._number:
                self._changed.wait_for(lambda: self._waiting, _WAIT_SECONDS)
                self._number, self._batch = number, self._next_batch()
            return self._batch

    def _folder_of(self, job_id: str) -> Path:
        if "/" in check_name(job_id):
            raise ValueError(f"{job_id!r} must be a job's id")
        return self._runs / job_id

    def _next_batch(self) -> list[Item]:
        batch, size = [], 0
        while self._waiting and size < PIECE_BYTES:
            item = next(self._waiting[0], None)
            if item is None:
                self._waiting.popleft()
                continue
            batch.append(item)
            size += len(item.data) if isinstance(item, Piece | LogText) else 0
        return batch

    def _receive(self, message: Message) -> None:
        """What the worker says, after the files that it has written: a heartbeat brings files, too."""
        job, is_last = self._job, False
        if isinstance(message, JobEvent) and job is not None and message.job_id == job.job_id:
            is_last = message.event.is_final
            message = move_message_paths(message, job.here, job.there)
        self._add(*(job.changes.collect() if job is not None else ()), self._log_text(), iter([message]))
        if is_last:
            self._job = None

    def _end(self, code: int) -> None:
        job = self._job
        self._add(*(job.changes.collect() if job is not None else ()), self._log_text(), iter([Ended(code=code)]))

    def _log_text(self) -> Iterator[LogText]:
        try:
            with self._log.open("rb") as file:
                file.seek(self._log_bytes)
                data = file.read(_LOG_BYTES)
        except OSError:
            data = b""
        self._log_bytes += len(data)
        return iter([LogText(data=data)] if data else [])

    def _add(self, *items: Iterator[Item]) -> None:
        with self._changed:
            self._waiting.append(chain.from_iterable(items))
            self._changed.notify_all()


@dataclass(frozen=True, kw_only=True)
class _RemoteJob:
    """A job that is made here: its folder in the studio and here, and what is new in the latter."""

    job_id: str
    there: str
    here: str
    changes: Changes


def local_plan(plan: WorkerPlan, settings: Settings) -> WorkerPlan:
    """The studio's plan for a worker of this machine; ends what an earlier studio has left here."""
    kill_stale_workers(settings.data_dir)
    return replace(plan, settings=settings, transport="hosts" if plan.hosts else "process", share=Share(), node=None)
