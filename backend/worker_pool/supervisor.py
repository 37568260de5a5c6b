"""Start and restart one worker, give it jobs, and cancel jobs. Knows jobs by id only; the engine has the queue."""

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
from backend.worker_pool.transports import TRANSPORTS
from backend.workers import messages
from backend.workers.exit_reasons import LOST, count_out_of_memory_kills, describe_exit_code, explain_exit
from backend.workers.process import Standby, Transport, WorkerPlan
from backend.workers.unused_accelerator import explain_from_log
from backend.workers.watchdog import Watchdog

MAX_IDLE_RESTARTS = 2  # after these restarts, a worker that dies without a job is not restarted until it gets a job
KEPT_LOGS = 10
_LOOK_SECONDS = 1.0
# The delay from a worker's readiness to the start of its standby process. An earlier start would slow down the page's start.
STANDBY_SECONDS = 30.0
STANDBY_BYTES = 4 * 10**9  # a standby process starts only with this much free memory; the process takes half a gigabyte
_LATE_SECONDS = 5.0  # a check that is this late restarts the timers: the machine was slow, so silence does not show a hang

logger = logging.getLogger(__name__)


class WorkerLost(ConnectionError):
    """The worker's machine is no longer reachable."""


class Supervisor:
    """Runs one worker, one job at a time, and restarts it when it dies.

    The worker's thread calls `on_event(job_id, event)` and `on_ready()` without holding a lock. Each job passed to `run` gets
    exactly one final event, or Interrupted if the worker dies. If the worker's machine was lost, `on_loss(supervisor)` is called,
    then the job is interrupted, and the worker is not restarted.
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
        self._ready_at: float | None = None  # monotonic time when the worker's current process first became ready
        self._job_id: str | None = None
        self._job_preset: str | None = None  # the last job's preset
        self._idle_restarts = 0
        self._has_died = False  # True from a death until the next process is ready
        self._is_closed = False
        self._end_reason = ""  # why the worker was killed, or why it ended itself
        self._memory_kills = 0  # the system's count of out-of-memory kills when the worker started
        self._watchdog = Watchdog(alive=0.0, progress=0.0)
        self._closing = threading.Event()
        self._log: Path | None = None
        self._status = WorkerStatus(state="starting", detail="The worker has not been started")
        self._facts = WorkerFacts()
        self._last_unused: UnusedAccelerator | None = None

    @property
    def has_own_devices(self) -> bool:
        """True if no other worker uses the worker's devices: it has TPU chips of its own, or a node of a cluster."""
        return bool(self._plan.share.chips or self._plan.node)

    def start(self) -> None:
        with self._lock:
            if self._transport is None:
                self._start()

    def run(self, job_id: str, request: GenerationRequest, folder: Path, *, is_draft: bool = False) -> None:
        """Give an idle worker a job or an instant draft. Start the worker if it is not running.

        Raises: OSError if the worker cannot be started, WorkerLost if its machine was lost. The job is then not assigned.
        """
        with self._lock:
            if self._is_closed:
                raise WorkerLost
            self._idle_restarts = 0
            transport = self._start() if self._transport is None else self._transport
            self._job_id, self._job_preset = job_id, request.preset
            transport.send(messages.Run(job_id=job_id, request=request, folder=folder, is_draft=is_draft))

    def cancel(self, job_id: str) -> None:
        """Ask the worker to stop this job and send its final event. A worker that does not stop in time is killed."""
        with self._lock:
            if self._transport is not None and self._job_id == job_id:
                self._watchdog.count_stop_request(time.monotonic())
                self._transport.send(messages.Cancel(job_id=job_id))

    def send_cue(self, job_id: str, cue: Cue) -> None:
        """Send a prompt or action to the live video of this job, which uses the cue from the next block on."""
        with self._lock:
            if self._transport is not None and self._job_id == job_id:
                self._transport.send(messages.AddCue(job_id=job_id, cue=cue))

    def send(self, message: messages.ExpectModels | messages.PrepareFor | messages.ManageModel) -> None:
        """Send a message about cached or expected models. Do nothing if the worker is not running."""
        with self._lock:
            if self._transport is not None:
                self._transport.send(message)

    def view(self) -> WorkerView:
        with self._lock:
            return WorkerView(
                name=self._plan.name,
                status=self._status,
                facts=self._facts,
                job_id=self._job_id,
                log=self._log,
                pid=self._transport.pid if self._transport else None,
                is_healthy=self._status.state != "failed" and not self._has_died,
                num_cores=len(self._plan.share.cores),
                machine=self._plan.machine,
                standby_pid=self._standby.pid if self._standby else None,
            )

    def handle_machine_loss(self) -> None:
        """Interrupt the worker's job, and do not restart the worker."""
        with self._lock:
            transport = self._transport
        self._handle_exit(LOST)
        if transport is not None:
            threading.Thread(target=transport.kill, name="kill", daemon=True).start()

    def close(self) -> None:
        """Stop the worker. No callback follows."""
        with self._lock:
            self._is_closed = True
            transport, standby = self._transport, self._standby
            self._standby = None
        self._closing.set()
        if standby is not None:
            standby.stop()
        if transport is not None:
            transport.stop()

    def _start(self, preset: str | None = None) -> Transport:
        """Start the worker. With `preset`, the preset of an interrupted job, load its model first and do not warm up."""
        plan = self._plan if preset is None else replace(self._plan, preset=preset, warm_up=False)
        self._status = WorkerStatus(state="starting", detail="Starting the worker")
        self._end_reason, self._memory_kills = "", count_out_of_memory_kills()
        self._watchdog, self._ready_at = Watchdog(alive=time.monotonic(), progress=time.monotonic()), None
        standby, self._standby = self._standby, None
        transport = standby.become_worker(plan, self._receive, self._handle_exit) if standby is not None else None
        if standby is not None and transport is not None:
            self._log = standby.log
        else:  # no standby process exists, or it is dead
            self._log = _new_log(self._plan.settings.logs_dir, self._plan.name)
            transport = TRANSPORTS[plan.transport](plan, self._log, self._receive, self._handle_exit)
        self._transport = transport
        threading.Thread(target=self._watch, args=(transport,), name="watch", daemon=True).start()
        return transport

    def _watch(self, transport: Transport) -> None:
        """Kill the worker if it hangs. Return when the worker has ended."""
        last_check = time.monotonic()
        while not self._closing.wait(_LOOK_SECONDS):
            now = time.monotonic()
            with self._lock:
                if self._transport is not transport:
                    return
                if now - last_check > _LATE_SECONDS:
                    self._watchdog.restart_timers(now)
                hang = self._watchdog.find_hang(now)
                self._end_reason = self._end_reason or hang
                has_place = self._plan.has_standby and self._plan.transport == "process" and self._standby is None
                is_due = self._ready_at is not None and now - self._ready_at > STANDBY_SECONDS
                if has_place and is_due and not self._is_closed and free_memory() > STANDBY_BYTES:
                    try:
                        self._standby = Standby(self._plan, _new_log(self._plan.settings.logs_dir, self._plan.name))
                    except OSError:
                        logger.exception("The standby process could not be started")
                        self._ready_at = None
            last_check = now
            if hang:
                logger.error("%s", hang)
                transport.kill()
                return

    def _receive(self, message: messages.Message) -> None:
        now = time.monotonic()
        match message:
            case messages.Heartbeat():
                self._watchdog.count_heartbeat(now)
            case messages.Status(status=status):
                self._watchdog.count_state(status.state, now)
                is_started = status.state in ("ready", "busy")
                with self._lock:
                    self._status = status
                    self._has_died = self._has_died and not is_started
                    if is_started and self._ready_at is None:
                        self._ready_at = time.monotonic()
                    is_ready = status.state == "ready" and not self._is_closed
                if is_ready:
                    self._on_ready()
            case messages.Facts(facts=facts):
                with self._lock:
                    is_new, self._facts = facts.notice != self._last_unused, facts
                    self._last_unused = facts.notice or self._last_unused
                if is_new and facts.notice is not None and facts.notice.is_fault:
                    logger.warning("%s", facts.notice)
            case messages.Exiting(reason=reason):
                self._end_reason = reason
            case messages.JobEvent(job_id=job_id, event=event):
                self._watchdog.count_event(event, now)
                with self._lock:
                    if self._is_closed or job_id != self._job_id:
                        return  # the job has already ended
                    if event.is_final or isinstance(event, Interrupted):
                        self._job_id = None
                self._on_event(job_id, event)

    def _handle_exit(self, code: int) -> None:
        """Report a dead worker's job as interrupted and restart the worker, unless its machine was lost.

        Until the next job, the worker is restarted at most `MAX_IDLE_RESTARTS` times. Deaths by signals from outside do not
        count.
        """
        is_lost = code == LOST
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = is_lost
            job_id, self._job_id = self._job_id, None
            had_devices = bool(self._facts.devices)
            self._transport, self._facts, self._has_died = None, WorkerFacts(), True
            assert self._log is not None, "a started worker has a log"
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
    """Return the path of a new log file. Remove the oldest logs with this name."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in sorted(folder.glob(f"{name}-????????T*.log"))[: -KEPT_LOGS + 1]:
        old.unlink(missing_ok=True)
    return folder / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}.log"
