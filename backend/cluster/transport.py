"""Connect the studio to a worker on a node of the cluster through the methods of a Ray actor.

The worker's messages are fetched in numbered batches, so a lost answer can be fetched again. The files that an event names are
written to the job's folder, under checked names, before the event is handled.
"""

import logging
import queue
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from backend.cluster.calls import Disconnected
from backend.cluster.node import Ended, Item, LogText
from backend.cluster.transfer import Piece, check_name, list_files, read_pieces, write_piece
from backend.files import is_disk_full
from backend.schemas.events import Interrupted
from backend.workers.exit_reasons import HOST_LOST, LOST
from backend.workers.messages import Cancel, Heartbeat, JobEvent, Message, Run
from backend.workers.process import OnExit, OnMessage, WorkerPlan

_ANSWER_SECONDS = 20.0  # time limit of one call, which may transfer 4 MB
_FETCH_SECONDS = 6.0  # time limit for fetching a batch; the node waits up to one second for a message
_UNREACHABLE_SECONDS = 3.0  # a worker counts as lost after this time without an answer
_RETRY_SECONDS = 0.25
_STOP_SECONDS = 8.5  # time limit of the node's `stop`, which takes up to 7 seconds; a server must end within ten
_LAST_FILES_SECONDS = 1.0  # time limit for fetching the last files after `stop`

logger = logging.getLogger(__name__)


class ClusterTransport:
    pid = None

    def __init__(self, plan: WorkerPlan, log: Path, on_message: OnMessage, on_exit: OnExit):
        self._plan, self._ask_node, self._log = plan, plan.node, log
        self._on_message, self._on_exit = on_message, on_exit
        self._outgoing: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._job: tuple[str, Path] | None = None  # the id and folder of the job whose files are accepted
        self._has_failed = threading.Event()  # set if a message could not be sent
        self._reader = threading.Thread(target=self._read, name="cluster-worker", daemon=True)
        self._reader.start()

    def send(self, message: Message) -> None:
        """Queue a message. If the worker is lost, the message is dropped."""
        self._outgoing.put(message)

    def kill(self) -> None:
        """Kill a worker that does not answer. If its node does not answer either, the worker counts as lost."""
        try:
            self._ask("kill")
        except Exception:  # any error of Ray means that the node is unreachable
            logger.warning("The node of worker %s does not answer", self._plan.name)
            self._has_failed.set()

    def stop(self) -> None:
        """Ask the worker to save its work and end. Fetch the worker's last files. Must not be called from a callback."""
        try:
            self._ask("stop", seconds=_STOP_SECONDS)
        except Exception:
            logger.warning("The node of worker %s does not answer", self._plan.name)
        self._has_failed.set()
        self._reader.join(_LAST_FILES_SECONDS)

    def _read(self) -> None:
        code = LOST
        try:
            self._ask("open", replace(self._plan, node=None))
            threading.Thread(target=self._write, name="cluster-messages", daemon=True).start()
            code = self._listen()
        except Disconnected:
            pass
        except Exception as error:
            from ray.exceptions import RayError

            if isinstance(error, RayError):  # the node is unreachable
                logger.warning("Worker %s is lost: %s", self._plan.name, str(error).strip().partition("\n")[0])
            else:
                logger.exception("Killing worker %s: its message could not be handled", self._plan.name)
                self.kill()
                code = -signal.SIGKILL
        self._outgoing.put(None)
        self._on_exit(code)

    def _listen(self) -> int:
        """Handle the worker's messages and return its exit code. Raises: RayError, ValueError (invalid file name), OSError."""
        number = 0
        while True:
            number += 1
            items = self._fetch_batch(number)
            if any(isinstance(item, Piece) for item in items):
                self._on_message(Heartbeat())  # files arrive, so the worker is alive even if the network is slow
            for item in items:
                if isinstance(item, Ended):
                    return LOST if item.code == HOST_LOST else item.code  # a slice that lost a host must be replaced as a whole
                self._handle(item)
            if not items and self._has_failed.is_set():
                return LOST

    def _fetch_batch(self, number: int) -> list[Item]:
        from ray.exceptions import ActorUnavailableError, GetTimeoutError

        until, seconds = None, _FETCH_SECONDS
        while True:
            try:
                return self._ask("fetch_batch", number, seconds=seconds)
            except (ActorUnavailableError, GetTimeoutError):
                until = until or time.monotonic() + _UNREACHABLE_SECONDS
                seconds = until - time.monotonic()
                if seconds <= 0 or self._has_failed.is_set():
                    raise
                time.sleep(_RETRY_SECONDS)

    def _handle(self, item: Item) -> None:
        job_id, folder = self._job or ("", None)
        if isinstance(item, Piece):
            if item.job_id != job_id or folder is None:
                return  # a file of another job
            try:
                write_piece(folder, item)
            except OSError as error:
                if not is_disk_full(error):
                    raise
                self._job = None
                full = Interrupted(cause="The disk is full", fix="Free disk space", by="disk")
                self._on_message(JobEvent(job_id=job_id, event=full))
                self.send(Cancel(job_id=job_id))
        elif isinstance(item, LogText):
            with self._log.open("ab") as file:
                file.write(item.data)
        else:
            # The supervisor drops events of earlier jobs, so their files are not checked.
            if isinstance(item, JobEvent) and item.job_id == job_id and folder is not None:
                if (preview := getattr(item.event, "preview", None)) is not None:
                    check_name(preview)
                if (result := getattr(item.event, "result", None)) is not None:
                    path = Path(result.path)
                    if not path.is_relative_to(folder) or not (folder / check_name(str(path.relative_to(folder)))).is_file():
                        raise ValueError(f"{path} must be a file in the job's folder")
            self._on_message(cast(Message, item))  # not `Ended`, which `_listen` handles

    def _write(self) -> None:
        try:
            while (message := self._outgoing.get()) is not None:
                if isinstance(message, Run):
                    self._send_files(message.job_id, message.folder)
                self._ask("send", message)
        except Disconnected:
            pass
        except Exception:
            logger.warning("Messages can no longer be sent to worker %s", self._plan.name, exc_info=True)
            self._has_failed.set()

    def _send_files(self, job_id: str, folder: Path) -> None:
        self._ask("create_job_folder", job_id)
        self._job = job_id, folder
        for name in list_files(folder):
            if "previews/" not in name:
                for piece in read_pieces(job_id, folder, name):
                    self._ask("write_piece", piece)

    def _ask(self, method: str, *values: object, seconds: float = _ANSWER_SECONDS) -> Any:
        """Call the node's method. Raises: RayError if Ray fails or the method raises; Disconnected."""
        return self._ask_node(method, *values, seconds=seconds)
