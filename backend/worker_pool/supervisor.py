"""Starts and restarts one worker, gives it jobs and cancels them. Knows jobs by id only: the queue is the engine's."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from backend.host_memory import free_memory
from backend.schemas.events import Event, Interrupted
from backend.schemas.prompt_cues import Cue
from backend.schemas.request import GenerationRequest
from backend.schemas.worker import UnusedAccelerator, WorkerFacts, WorkerStatus, WorkerView
from backend.worker_pool.transports import TRANSPORTS, Transport
from backend.workers.exit_reasons import LOST, count_out_of_memory_kills, describe_exit_code, explain_exit
from backend.workers.messages import (
    AddCue,
    Cancel,
    Exiting,
    ExpectModels,
    Facts,
    Heartbeat,
    JobEvent,
    ManageModel,
    Message,
    PrepareFor,
    Run,
    Status,
)
from backend.workers.process import Standby, WorkerPlan
from backend.workers.unused_accelerator import explain_from_log
from backend.workers.watchdog import Watchdog

MAX_IDLE_RESTARTS = 2  # after that, a worker that dies without a job stays down until a job comes
KEPT_LOGS = 10
_LOOK_SECONDS = 1.0
STANDBY_SECONDS = 30.0  # after a worker was ready: by then nobody waits for the page or for a first video any more
STANDBY_BYTES = 4 * 10**9  # of free memory; it takes half a gigabyte
_LATE_SECONDS = 5.0  # this late, a look was held up by the machine: it says nothing about the worker

logger = logging.getLogger(__name__)


class WorkerLost(ConnectionError):
    """The machine that the worker was on has gone."""


class Supervisor:
    """Keeps one worker alive for one job at a time.

    `on_event(job_id, event)` is called from the worker's thread with no lock held; a job that was given to `run` gets
    exactly one final event, or Interrupted if the worker dies, and is no longer the worker's after that. `on_ready()` is called
    in the same way when the worker becomes ready. A worker that reports nothing for too long is ended. One whose machine has gone
    is not started again: `on_loss(supervisor)` is called before its job is interrupted.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        on_event: Callable[[str, Event], None],
        on_ready: Callable[[], None] = lambda: None,
        on_loss: Callable[["Supervisor"], None] = lambda supervisor: None,
    ):
        self._plan, self._on_event, self._on_ready, self._on_loss = plan, on_event, on_ready, on_loss
        self._lock = threading.Lock()
        self._transport: Transport | None = None
        self._standby: Standby | None = None
        self._ready_at: float | None = None  # when this worker was ready first
        self._job_id: str | None = None
        self._job_preset: str | None = None  # of the last job
        self._idle_restarts = 0
        self._has_died = False  # and not been ready since
        self._is_closed = False
        self._end_reason = ""  # why this worker was ended, or the reason that it gave itself
        self._memory_kills = 0  # by the system, when the worker was started
        self._watchdog = Watchdog(alive=0.0, progress=0.0)
        self._closing = threading.Event()
        self._log: Path | None = None
        self._status = WorkerStatus(state="starting", detail="The worker has not been started")
        self._facts = WorkerFacts()
        self._last_unused: UnusedAccelerator | None = None

    def start(self) -> None:
        """Starts the worker if there is none."""
        with self._lock:
            if self._transport is None:
                self._start()

    def run(self, job_id: str, request: GenerationRequest, folder: Path) -> None:
        """Gives the worker a job; it must not have another. Raises: OSError if it cannot be started, WorkerLost if its machine is
        gone; the job is not given."""
        with self._lock:
            if self._is_closed:
                raise WorkerLost
            self._idle_restarts = 0
            transport = self._start() if self._transport is None else self._transport
            self._job_id, self._job_preset = job_id, request.preset
            transport.send(Run(job_id=job_id, request=request, folder=folder))

    def cancel(self, job_id: str) -> None:
        """Asks the worker to stop this job; its final event follows. A worker that does not stop in time is ended."""
        with self._lock:
            if self._transport is not None and self._job_id == job_id:
                self._watchdog.count_stop_request(time.monotonic())
                self._transport.send(Cancel(job_id=job_id))

    def send_cue(self, job_id: str, cue: Cue) -> None:
        """Tells the worker what is said to this job, from its next block on."""
        with self._lock:
            if self._transport is not None and self._job_id == job_id:
                self._transport.send(AddCue(job_id=job_id, cue=cue))

    def tell(self, message: ExpectModels | PrepareFor | ManageModel) -> None:
        """Tells the worker about what it keeps and makes ready; nothing if there is none."""
        with self._lock:
            if self._transport is not None:
                self._transport.send(message)

    def view(self) -> WorkerView:
        """The worker's status, and what it last reported."""
        with self._lock:
            return WorkerView(
                name=self._plan.name,
                status=self._status,
                facts=self._facts,
                job_id=self._job_id,
                log=self._log,
                pid=self._transport.pid if self._transport else None,
                is_fit=self._status.state != "failed" and not self._has_died,
                num_cores=len(self._plan.share.cores),
                machine=self._plan.machine,
                standby=self._standby.pid if self._standby else None,
            )

    def lose(self) -> None:
        """The machine that the worker is on has gone: its job is interrupted."""
        with self._lock:
            transport = self._transport
        self._handle_exit(LOST)
        if transport is not None:
            threading.Thread(target=transport.kill, name="kill", daemon=True).start()

    def close(self) -> None:
        """Ends the worker. No callback comes afterwards."""
        with self._lock:
            self._is_closed = True
            transport, standby = self._transport, self._standby
            self._standby = None
        self._closing.set()
        if standby is not None:
            standby.end()
        if transport is not None:
            transport.stop()

    def _start(self, preset: str | None = None) -> Transport:
        """Starts the worker; with the `preset` of a job that waits for it, it brings that one's model alone."""
        plan = self._plan if preset is None else replace(self._plan, preset=preset, warm_up=False)
        self._status = WorkerStatus(state="starting", detail="Starting the worker")
        self._end_reason, self._memory_kills = "", count_out_of_memory_kills()
        self._watchdog, self._ready_at = Watchdog(alive=time.monotonic(), progress=time.monotonic()), None
        transport = self._transport = self._taken_over(plan) or self._begun(plan)
        threading.Thread(target=self._watch, args=(transport,), name="watch", daemon=True).start()
        return transport

    def _taken_over(self, plan: WorkerPlan) -> Transport | None:
        """The worker that the process which stands by becomes; None if there is none."""
        standby, self._standby = self._standby, None
        if standby is None:
            return None
        worker = standby.begin(plan, self._receive, self._handle_exit)
        if worker is not None:
            self._log = standby.log
        return worker

    def _begun(self, plan: WorkerPlan) -> Transport:
        self._log = _new_log(self._plan.settings.logs_dir, self._plan.name)
        return TRANSPORTS[plan.transport](plan, self._log, self._receive, self._handle_exit)

    def _stand_by(self, now: float) -> None:
        """Starts the process that stands by, once the worker has been ready for a while."""
        lacks = self._plan.has_standby and self._plan.transport == "process" and self._standby is None and not self._is_closed
        if lacks and self._ready_at is not None and now - self._ready_at > STANDBY_SECONDS and free_memory() > STANDBY_BYTES:
            try:
                self._standby = Standby(self._plan, _new_log(self._plan.settings.logs_dir, self._plan.name))
            except OSError:
                logger.exception("No process can stand by")
                self._ready_at = None

    def _watch(self, transport: Transport) -> None:
        """Ends the worker if it hangs; returns when it is gone."""
        looked = time.monotonic()
        while not self._closing.wait(_LOOK_SECONDS):
            now = time.monotonic()
            with self._lock:
                if self._transport is not transport:
                    return
                if now - looked > _LATE_SECONDS:
                    self._watchdog.restart_timers(now)
                complaint = self._watchdog.find_hang(now)
                self._end_reason = self._end_reason or complaint
                self._stand_by(now)
            looked = now
            if complaint:
                logger.error("%s", complaint)
                transport.kill()
                return

    def _receive(self, message: Message) -> None:
        now = time.monotonic()
        match message:
            case Heartbeat():
                self._watchdog.count_heartbeat(now)
            case Status(status=status):
                self._watchdog.count_state(status.state, now)
                self._take_status(status)
            case Facts(facts=facts):
                self._take_facts(facts)
            case Exiting(reason=reason):
                self._end_reason = reason
            case JobEvent(job_id=job_id, event=event):
                self._watchdog.count_event(event, now)
                self._pass_on(job_id, event)

    def _take_facts(self, facts: WorkerFacts) -> None:
        """Keeps them; an accelerator that is not used, by mistake, is said in the server's log once."""
        with self._lock:
            is_new, self._facts = facts.notice != self._last_unused, facts
            self._last_unused = facts.notice or self._last_unused
        if is_new and facts.notice is not None and facts.notice.is_fault:
            logger.warning("%s", facts.notice)

    def _take_status(self, status: WorkerStatus) -> None:
        with self._lock:
            self._status = status
            self._has_died = self._has_died and status.state not in ("ready", "busy")
            if status.state in ("ready", "busy") and self._ready_at is None:
                self._ready_at = time.monotonic()
            is_ready = status.state == "ready" and not self._is_closed
        if is_ready:
            self._on_ready()

    def _pass_on(self, job_id: str, event: Event) -> None:
        with self._lock:
            if self._is_closed or job_id != self._job_id:
                return  # about a job that has already ended
            if event.is_final or isinstance(event, Interrupted):
                self._job_id = None
        self._on_event(job_id, event)

    def _handle_exit(self, code: int) -> None:
        """The worker is dead: reports its job as interrupted, and starts another, `MAX_IDLE_RESTARTS` times at most between jobs.
        A signal from outside says nothing about the worker, so it does not count. If its machine has gone, this is the end."""
        is_lost = code == LOST
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = is_lost
            job_id, self._job_id = self._job_id, None
            had_devices = bool(self._facts.devices)
            self._transport, self._facts, self._has_died = None, WorkerFacts(), True
            assert self._log is not None, "each worker has one"
            death = explain_exit(code, self._log, count_out_of_memory_kills() > self._memory_kills, self._end_reason)
            detail = f"{self._end_reason or f'The worker {describe_exit_code(code)}'}; its log is {self._log}"
            if not had_devices and (notice := explain_from_log(self._log)):
                self._facts, detail = WorkerFacts(notice=notice), str(notice)
            self._status = WorkerStatus(state="failed", detail=detail)
            logger.error("%s", self._status.detail)
        if is_lost:
            self._closing.set()
            self._on_loss(self)
        if job_id is not None:
            self._on_event(job_id, death)
        with self._lock:
            if self._transport is None and not self._is_closed and self._idle_restarts < MAX_IDLE_RESTARTS:
                self._idle_restarts += death.by != "signal"
                self._start(self._job_preset if job_id is not None else None)


def _new_log(folder: Path, name: str) -> Path:
    """The path of a new log file; removes the oldest logs with this name."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(folder.glob(f"{name}-????????T*.log"))[: -KEPT_LOGS + 1]:
        old.unlink(missing_ok=True)
    return folder / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}.log"
