"""Run a worker process on a node of the cluster, and forward its messages and files. Does not import Ray.

`backend.worker_pool.nodes` turns `NodeWorker` into an actor on each host of a slice.
"""

import shutil
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from backend.cluster.transfer import PIECE_BYTES, Changes, Piece, check_name, move_paths, write_piece
from backend.multihost.member import Member
from backend.multihost.transport import MultihostTransport, free_port
from backend.multihost.versions import fingerprint
from backend.schemas.worker import Hosts
from backend.settings import from_environment
from backend.shares import Share
from backend.workers.messages import JobEvent, Message, Run, decode_message, encode_message
from backend.workers.process import WorkerPlan, WorkerProcess, kill_stale_workers

FOLDER = "cluster"
_WAIT_SECONDS = 1.0  # the longest time that `fetch_batch` waits for a message or file
_LOG_BYTES = 2**18  # the most bytes of log output in one message


@dataclass(frozen=True, kw_only=True)
class LogText:
    """The worker's new log output."""

    data: bytes


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The worker process ended with this exit code. No message follows."""

    code: int


Item = Message | Piece | LogText | Ended


class NodeWorker:
    """One worker of the studio, on this node, or with `serve` another host of a multihost worker.

    The worker's files are in `cluster/NAME` in the node's data folder. The studio can call several methods at the same time.
    """

    def __init__(self, name: str):
        self._settings = from_environment()
        self._folder = self._settings.data_dir / FOLDER / check_name(name)
        self._runs = self._folder / "runs"
        self._relay: Relay | None = None

    def fingerprint(self) -> str:
        return fingerprint()

    def free_port(self, address: str) -> int:
        """Return a free port of `address` for the hosts of this slice. Raises: OSError if this node does not have `address`."""
        return free_port(address)

    def open(self, plan: WorkerPlan) -> None:
        """Stop the earlier worker, if any, then start the worker of the plan. Raises: OSError."""
        if self._relay is not None:
            self._relay.worker.kill()
            self._relay.worker.stop()  # frees the port on which a multihost worker listens
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        kill_stale_workers(self._settings.data_dir)
        transport = "hosts" if plan.hosts else "process"
        plan = replace(plan, settings=self._settings, transport=transport, share=Share(), node=None)
        self._relay = Relay(plan, self._folder / "worker.log")

    def create_job_folder(self, job_id: str) -> None:
        """Create an empty folder for a job. Delete the folders of earlier jobs."""
        shutil.rmtree(self._runs, ignore_errors=True)
        self._folder_of(job_id).mkdir(parents=True)

    def write_piece(self, piece: Piece) -> None:
        """Write a piece of an input, or of progress that another worker stored. Raises: ValueError, OSError."""
        write_piece(self._folder_of(piece.job_id), piece)

    def send(self, message: Message) -> None:
        """Send a message to the worker. Replace the studio's paths in a job by paths on this node."""
        relay = self._started_relay()
        if isinstance(message, Run):
            folder = self._folder_of(message.job_id)
            changes = Changes(message.job_id, folder)
            relay.job = _RemoteJob(job_id=message.job_id, there=str(message.folder), here=str(folder), changes=changes)
            message = decode_message(move_paths(encode_message(message), relay.job.there, relay.job.here))
        relay.worker.send(message)

    def fetch_batch(self, number: int) -> list[Item]:
        """Return batch `number` (from 1) of the worker's messages and files. A repeated `number` returns the same batch again."""
        return self._started_relay().fetch_batch(number)

    def kill(self) -> None:
        self._started_relay().worker.kill()

    def _folder_of(self, job_id: str) -> Path:
        if "/" in check_name(job_id):
            raise ValueError(f"{job_id!r} must be a job's id")
        return self._runs / job_id

    def _started_relay(self) -> "Relay":
        assert self._relay is not None, "the studio opens the worker first"
        return self._relay

    def serve(self, hosts: Hosts, index: int) -> None:
        """Run process `index` of the multihost worker until the Ray actor is killed. Raises: MemberRefused."""
        kill_stale_workers(self._settings.data_dir)
        settings, secret = self._settings, hosts.secret
        Member(index=index, count=hosts.count, address=hosts.address, port=hosts.port, secret=secret, settings=settings).serve()

    def stop(self) -> None:
        if self._relay is not None:
            self._relay.worker.stop()


class Relay:
    """Queues the messages and files of one worker until the studio fetches them. Files are read only then."""

    def __init__(self, plan: WorkerPlan, log: Path):
        self._log = log
        self._changed = threading.Condition()
        self._waiting: deque[Iterator[Item]] = deque()
        self._number, self._batch = 0, []  # the number and content of the last batch
        self._log_bytes = 0  # number of log bytes that were forwarded
        self.job: _RemoteJob | None = None
        start = MultihostTransport if plan.hosts else WorkerProcess
        self.worker = start(plan, self._log, self._receive, self._end)

    def fetch_batch(self, number: int) -> list[Item]:
        """Return batch `number` of messages and files, about `PIECE_BYTES` large, or [] if nothing arrives within a second."""
        with self._changed:
            if number != self._number:
                self._changed.wait_for(lambda: self._waiting, _WAIT_SECONDS)
                batch, size = [], 0
                while self._waiting and size < PIECE_BYTES:
                    item = next(self._waiting[0], None)
                    if item is None:
                        self._waiting.popleft()
                        continue
                    batch.append(item)
                    size += len(item.data) if isinstance(item, Piece | LogText) else 0
                self._number, self._batch = number, batch
            return self._batch

    def _receive(self, message: Message) -> None:
        job, is_last = self.job, False
        if isinstance(message, JobEvent) and job is not None and message.job_id == job.job_id:
            is_last = message.event.is_final
            message = decode_message(move_paths(encode_message(message), job.here, job.there))
        self._add(message)
        if is_last and self.job is job:  # the next job may have started meanwhile
            self.job = None

    def _end(self, code: int) -> None:
        self._add(Ended(code=code))

    def _add(self, item: Item) -> None:
        """Queue the changed files of the job, the new log output, and then this item, which may be a heartbeat."""
        job = self.job
        pieces = job.changes.collect() if job is not None else []
        try:
            with self._log.open("rb") as file:
                file.seek(self._log_bytes)
                data = file.read(_LOG_BYTES)
        except OSError:
            data = b""
        self._log_bytes += len(data)
        log = [LogText(data=data)] if data else []
        with self._changed:
            self._waiting.append(chain(*pieces, log, [item]))
            self._changed.notify_all()


@dataclass(frozen=True, kw_only=True)
class _RemoteJob:
    """The worker's job. Its folder has the path `there` in the studio and `here` on this node. `changes` finds its changes."""

    job_id: str
    there: str
    here: str
    changes: Changes
