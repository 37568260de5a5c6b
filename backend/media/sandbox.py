"""The sandbox: a few processes that open strangers' files, pictures as well as videos, however many requests there are.

Whatever a file does to the code that reads it happens in there: a process has limits of memory, a piece of work has a limit of
time, and both end with the process, which is started again. A visitor has one place in it, and a few requests that wait; so has
an address, and work on clips never takes all places. Whoever waits does so without a thread, in `opened`; a caller who goes takes
the work along. What work returns must be plain JSON values, because nothing that a process in the sandbox says is run here;
larger results are files.

Long work (`SandboxCall.task`: exports, films, comparisons, projects) has a process of its own, so that short work never waits
behind it. The owner sees its progress and may stop it. Its processor time is counted: each piece has a limit, and each visitor,
each address and all visitors together have a budget for an hour.
"""

import asyncio
import contextlib
import functools
import logging
import math
import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, TypeVar

from backend import errors
from backend.budget import HourlyBudget
from backend.child_process import start_module
from backend.errors import Busy, RequestError, StudioError
from backend.media.processor_time import session_seconds
from backend.media.sandbox_wire import read_reply, write_work
from backend.settings import module_environment

AT_ONCE = 2  # a picture of 50 million pixels takes 200 MB once decoded, and as much again where it is changed
MOST_WAITING = 64
MOST_OF_VISITOR = 4
MOST_OF_ADDRESS = 16
PATIENCE_SECONDS = 60.0  # that a request waits for its turn: a picture takes a few seconds, so this is a long line
QUICK_SECONDS = 20.0  # for one piece of work: a picture of 50 million pixels takes 2 to 4
LONG_SECONDS = 60.0
EXPORT_SECONDS = 300.0  # for writing a video of many frames, such as a comparison
TASK_PROCESSOR_SECONDS = 240.0  # for one piece of long work: two cores, most of EXPORT_SECONDS
_LEAST_CHARGE_SECONDS = 1.0  # of processor time that a piece of long work counts for: its process must start (measured: 0.5 s)
_WATCH_SECONDS = 0.5  # between two looks at the processor time of long work
LARGEST_KEPT = 200_000_000  # bytes: a process that has become larger is replaced, since freed memory stays with it

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PoolLimits:
    """How many pieces of work run at once, how many wait (in all, of a visitor, of an address), and for how long."""

    at_once: int
    waiting: int
    waiting_of_visitor: int
    waiting_of_address: int
    patience_seconds: float


TASKS = PoolLimits(at_once=1, waiting=8, waiting_of_visitor=2, waiting_of_address=4, patience_seconds=120.0)


@dataclass(frozen=True, kw_only=True)
class ProcessorBudget:
    """Processor seconds of long work within an hour: of a visitor, of an address, and in all (half of two cores)."""

    of_visitor: float = 600.0
    of_address: float = 1200.0
    in_all: float = 3600.0


BUDGET = ProcessorBudget()


@dataclass(frozen=True, kw_only=True)
class SandboxCall:
    """A piece of work: a function at the top of a module, what it is given, and the seconds that it may take.

    `task` is the kind of long work, such as "export"; empty for short work. Long work may use `processor_seconds`.
    """

    work: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    seconds: float = QUICK_SECONDS
    task: str = ""
    processor_seconds: float = TASK_PROCESSOR_SECONDS

    @property
    def is_long(self) -> bool:
        """Whether this is no single picture: such work never takes all places."""
        return self.seconds > QUICK_SECONDS


@dataclass(frozen=True, kw_only=True)
class Requester:
    """For whom a file is opened: a visitor's owner name, and their address. Empty ones are not limited. `has_budget` is false for
    the operator, whose long work is not counted."""

    owner: str = ""
    address: str = ""
    has_budget: bool = True


ANONYMOUS = Requester()
Result = TypeVar("Result")
Steps = Generator[SandboxCall, Any, Result]
"""Work around sandbox calls: yields each call, receives the value, and returns a result. See `SandboxPool.run_steps`."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Long work as its owner sees it. `share` is how much is done, from 0 to 1; None while it waits for its turn."""

    id: str
    kind: str
    share: float | None


@dataclass(eq=False)
class _Ticket:
    """A request's place in line, and later in a process."""

    call: SandboxCall
    who: Requester
    future: Future = field(default_factory=Future)
    process: "_Process | None" = None
    is_abandoned: bool = False
    is_stopped: bool = False
    share: float = 0.0
    id: str = field(default_factory=lambda: secrets.token_hex(8))


class SandboxPool:
    """Runs openings: short work `at_once` at a time, long work as `tasks` says. The processes start when they are first needed;
    those for short work also with `start`."""

    def __init__(
        self,
        at_once: int = AT_ONCE,
        patience_seconds: float = PATIENCE_SECONDS,
        most_waiting: int = MOST_WAITING,
        most_of_visitor: int = MOST_OF_VISITOR,
        tasks: PoolLimits = TASKS,
        budget: ProcessorBudget = BUDGET,
    ):
        short = PoolLimits(
            at_once=at_once,
            waiting=most_waiting,
            waiting_of_visitor=most_of_visitor,
            waiting_of_address=MOST_OF_ADDRESS,
            patience_seconds=patience_seconds,
        )
        self._short = _Pool(short)
        self._tasks = _Pool(tasks, HourlyBudget(budget.of_visitor, budget.of_address, budget.in_all))

    def start(self, modules: Sequence[str] = ()) -> None:
        """Starts the processes for short work ahead, with these modules imported, so that the first picture waits for nothing."""
        self._short.start(modules)

    def run(self, call: SandboxCall, who: Requester = ANONYMOUS) -> Any:
        """What the work returns or raises; for callers with a thread of their own. Raises: Busy if there is no place in line, its
        turn does not come in time, or the hour's processor time is used up; RequestError if it takes too long or too much."""
        return self._pool(call).run(call, who)

    async def run_async(self, call: SandboxCall, who: Requester = ANONYMOUS) -> Any:
        """As `run`, for callers in an event loop: waits without a thread. If the caller is cancelled, the work ends too."""
        return await self._pool(call).run_async(call, who)

    def tasks(self, owner: str) -> list[Task]:
        """The owner's long work, running first."""
        return self._tasks.tasks(owner)

    def stop_task(self, task_id: str, owner: str) -> bool:
        """Stops the owner's long work; False if there is none with this id."""
        return self._tasks.stop_task(task_id, owner)

    def close(self) -> None:
        """Takes no more work, drops the work that waits, and ends the processes, whatever they do."""
        self._short.close()
        self._tasks.close()

    def _pool(self, call: SandboxCall) -> "_Pool":
        return self._tasks if call.task else self._short

    def run_steps(self, steps: Steps[Result], who: Requester = ANONYMOUS) -> Result:
        """The result of these steps, with each opening done by `run`."""
        move = functools.partial(next, steps)
        try:
            while True:
                call = move()
                try:
                    move = functools.partial(steps.send, self.run(call, who))
                except Exception as error:
                    move = functools.partial(steps.throw, error)
        except StopIteration as end:
            return end.value

    async def run_steps_async(
        self, steps: Steps[Result], who: Requester = ANONYMOUS, undo: Callable[[Result], object] = lambda result: None
    ) -> Result:
        """As `follow`, with each opening done by `opened`, and what is between them in a thread.

        If the caller is cancelled, the steps are closed: at once while they wait for an opening, else as soon as their thread has
        come to the next. If it comes to the result instead, `undo` is given that, since nobody else will be.
        """
        move = functools.partial(next, steps)
        while True:
            moving = asyncio.ensure_future(asyncio.to_thread(_next_call, move))
            try:
                call, result = await asyncio.shield(moving)
            except asyncio.CancelledError:
                moving.add_done_callback(functools.partial(_close_steps, steps, undo))
                raise
            if call is None:
                return result
            try:
                move = functools.partial(steps.send, await self.run_async(call, who))
            except asyncio.CancelledError:
                steps.close()
                raise
            except Exception as error:
                move = functools.partial(steps.throw, error)


class _Pool:
    """Processes for one sort of work, and the line before them. With a `budget`, processor time is counted and limited, and each
    piece of work has a process of its own."""

    def __init__(self, limits: PoolLimits, budget: HourlyBudget | None = None):
        self._limits, self._budget = limits, budget
        self._queue: list[_Ticket] = []
        self._running: list[_Ticket] = []
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._modules: Sequence[str] = ()
        self._is_closed = False

    def start(self, modules: Sequence[str] = ()) -> None:
        """Starts the processes ahead, with these modules imported."""
        self._modules = modules
        with self._changed:
            while not self._is_closed and len(self._threads) < self._limits.at_once:
                self._add_thread()

    def run(self, call: SandboxCall, who: Requester = ANONYMOUS) -> Any:
        """As `SandboxPool.run`."""
        ticket = self._add_to_queue(call, who)
        try:
            return ticket.future.result(self._limits.patience_seconds)
        except TimeoutError:
            if ticket.future.done() or not self._remove_waiting(ticket):  # it has begun, and has a limit of its own
                return ticket.future.result()
            raise _busy_error() from None
        except CancelledError:
            raise _busy_error() from None

    async def run_async(self, call: SandboxCall, who: Requester = ANONYMOUS) -> Any:
        """As `SandboxPool.run_async`."""
        ticket = self._add_to_queue(call, who)
        patience = asyncio.get_running_loop().call_later(self._limits.patience_seconds, self._remove_waiting, ticket)
        try:
            return await asyncio.wrap_future(ticket.future)
        except asyncio.CancelledError:
            if ticket.is_abandoned:
                raise _busy_error() from None
            self._abandon(ticket)
            raise
        finally:
            patience.cancel()

    def close(self) -> None:
        """Takes no more work, drops the work that waits, and ends the processes, whatever they do."""
        with self._changed:
            self._is_closed = True
            line, running, self._queue = self._queue, list(self._running), []
            self._changed.notify_all()
        for ticket in line:
            ticket.is_abandoned = True
            ticket.future.cancel()
        for ticket in running:
            self._abandon(ticket)

    def tasks(self, owner: str) -> list[Task]:
        """The owner's work, running first."""
        with self._changed:
            running = [(ticket, ticket.share) for ticket in self._running if ticket.who.owner == owner]
            waiting = [(ticket, None) for ticket in self._queue if ticket.who.owner == owner]
            return [Task(id=ticket.id, kind=ticket.call.task, share=share) for ticket, share in (*running, *waiting)]

    def stop_task(self, task_id: str, owner: str) -> bool:
        """Stops the owner's work; False if there is none with this id."""
        with self._changed:
            found = (ticket for ticket in (*self._running, *self._queue) if (ticket.id, ticket.who.owner) == (task_id, owner))
            ticket = next(found, None)
            if ticket is None:
                return False
            ticket.is_stopped = True
        self._abandon(ticket)
        with contextlib.suppress(InvalidStateError):
            ticket.future.set_exception(_stopped_error())
        return True

    def _add_to_queue(self, call: SandboxCall, who: Requester) -> _Ticket:
        ticket = _Ticket(call, who)
        self._processor_limit(ticket)
        with self._changed:
            own = sum(bool(who.owner) and who.owner == other.who.owner for other in self._queue)
            near = sum(bool(who.address) and who.address == other.who.address for other in self._queue)
            most = self._limits
            is_full = len(self._queue) >= most.waiting or own >= most.waiting_of_visitor or near >= most.waiting_of_address
            if self._is_closed or is_full:
                raise _busy_error()
            self._queue.append(ticket)
            if len(self._threads) < self._limits.at_once and len(self._running) + len(self._queue) > len(self._threads):
                self._add_thread()
            self._changed.notify()
        return ticket

    def _remove_waiting(self, ticket: _Ticket) -> bool:
        """Takes the request out of the line; False if it is no longer there."""
        with self._changed:
            if ticket not in self._queue:
                return False
            self._queue.remove(ticket)
            ticket.is_abandoned = True
        ticket.future.cancel()
        return True

    def _abandon(self, ticket: _Ticket) -> None:
        """Takes the work out of the line, or ends the process that does it."""
        with self._changed:
            ticket.is_abandoned = True
            if ticket in self._queue:
                self._queue.remove(ticket)
            process = ticket.process
        if process is not None:
            process.kill()

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._serve_queue, name="sandbox", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve_queue(self) -> None:
        """One thread of this process for each process in the sandbox."""
        process = None
        try:
            while True:
                if self._budget is None and (process := process or self._start_process()) is None:
                    return  # processes for short work are there ahead; one for long work starts when it is needed
                if (ticket := self._take_ticket()) is None:
                    return
                if (process := process or self._start_process()) is None:
                    ticket.is_abandoned = True
                    ticket.future.cancel()
                    return
                ticket.process = process
                try:
                    if not ticket.is_abandoned:
                        self._run_ticket(ticket, process)
                finally:
                    with self._changed:
                        ticket.process = None
                        self._running.remove(ticket)
                        self._changed.notify_all()
                if not process.is_fit or self._budget is not None:
                    process.kill()
                    process = None
        finally:
            if process is not None:
                process.kill()

    def _run_ticket(self, ticket: _Ticket, process: "_Process") -> None:
        """Does the work, counts its processor time, and gives the caller, if there still is one, its result."""
        try:
            seconds = self._processor_limit(ticket)
            give = functools.partial(ticket.future.set_result, process.execute(ticket.call, seconds, ticket))
        except Exception as error:
            give = functools.partial(ticket.future.set_exception, _stopped_error() if ticket.is_stopped else error)
        if self._budget is not None and ticket.who.has_budget:
            self._budget.add(ticket.who.owner, ticket.who.address, max(_LEAST_CHARGE_SECONDS, process.processor_seconds))
        with contextlib.suppress(InvalidStateError):
            give()

    def _processor_limit(self, ticket: _Ticket) -> float | None:
        """The processor seconds that the work may use; None for any number. Raises: Busy if nothing is left of the hour's."""
        if self._budget is None:
            return None
        most, who = ticket.call.processor_seconds, ticket.who
        if not who.has_budget:
            return most
        left = self._budget.remaining(who.owner, who.address)
        if left <= 0:
            raise _budget_error(self._budget.wait_seconds(who.owner, who.address))
        return min(most, left)

    def _start_process(self) -> "_Process | None":
        return None if self._is_closed else _Process(self._modules)

    def _take_ticket(self) -> _Ticket | None:
        """The first in line who may have a place; None once the sandbox is closed."""
        with self._changed:
            while not self._is_closed:
                ticket = next((ticket for ticket in self._queue if self._can_start(ticket)), None)
                if ticket is not None:
                    self._queue.remove(ticket)
                    self._running.append(ticket)
                    return ticket
                self._changed.wait()
            return None

    def _can_start(self, ticket: _Ticket) -> bool:
        who, others = ticket.who, self._running
        if any(who.owner and who.owner == other.who.owner for other in others):
            return False
        if any(who.address and who.address == other.who.address for other in others):
            return False
        long = sum(other.call.is_long for other in others)
        return not ticket.call.is_long or self._limits.at_once == 1 or long < self._limits.at_once - 1


def _next_call(move: Callable[[], SandboxCall]) -> tuple[SandboxCall | None, Any]:
    """The next opening, or None and the result: a future cannot carry StopIteration."""
    try:
        return move(), None
    except StopIteration as end:
        return None, end.value


def _close_steps(steps: Steps[Result], undo: Callable[[Result], object], moving: asyncio.Future) -> None:
    """Ends steps whose caller went while a thread moved them on."""
    if moving.cancelled() or moving.exception() is not None:  # the studio ends; or they have ended with an error of their own
        return
    call, result = moving.result()
    if call is None:
        undo(result)
    steps.close()


class _Process:
    """One process in the sandbox."""

    def __init__(self, modules: Sequence[str]):
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")  # each maps memory for its threads
        self._process = start_module(
            "backend.media.sandbox_process",
            modules,
            module_environment() | one_thread,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None, "it has pipes"
        self._written, self._read = self._process.stdin, self._process.stdout
        self._has_ended, self._lock = False, threading.Lock()
        self.is_fit = True
        self.processor_seconds = 0.0  # of this process and all that it has started, as last seen; of long work only
        self._is_over_budget = False

    def execute(self, call: SandboxCall, processor_seconds: float | None = None, ticket: _Ticket | None = None) -> Any:
        """What the work returns or raises. With `processor_seconds` it may use so much processor time. The `ticket` is told how
        much is done. Raises: RequestError if it takes too long or ends the process."""
        timer = threading.Timer(call.seconds, self.kill, kwargs={"is_waited_for": False})
        timer.daemon = True
        timer.start()
        is_over = threading.Event()
        if processor_seconds is not None:
            threading.Thread(
                target=self._enforce_processor_limit, args=(processor_seconds, is_over), name="processor time", daemon=True
            ).start()
        try:
            write_work(self._written, call.work, call.arguments)
            while "share" in (reply := read_reply(self._read)):
                if ticket is not None and isinstance(reply["share"], int | float):
                    ticket.share = min(1.0, max(0.0, float(reply["share"])))
        except (OSError, ValueError, EOFError):
            self.is_fit = False
            raise (_processor_limit_error(processor_seconds) if self._is_over_budget else _resource_error()) from None
        finally:
            timer.cancel()
            is_over.set()
            if processor_seconds is not None:
                self._update_processor_seconds()
        self.is_fit = not self._has_ended and reply.get("memory", 0) < LARGEST_KEPT
        if "error" in reply:
            raise _decode_error(reply["error"])
        return reply.get("value")

    def _enforce_processor_limit(self, most: float, is_over: threading.Event) -> None:
        """Ends the process when it has used more processor seconds."""
        while not is_over.wait(_WATCH_SECONDS):
            self._update_processor_seconds()
            if self.processor_seconds > most:
                self._is_over_budget = True
                self.kill(is_waited_for=False)
                return

    def _update_processor_seconds(self) -> None:
        """Reads the processor time; of a process that has ended, what was seen before stays."""
        self.processor_seconds = max(self.processor_seconds, session_seconds(self._process.pid))

    def kill(self, *, is_waited_for: bool = True) -> None:
        """Ends the process and what it has started. May be called twice, and from any thread."""
        with self._lock:
            if not self._has_ended:
                self._has_ended = True
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
        self.is_fit = False
        if is_waited_for:
            self._process.wait()
            for pipe in (self._written, self._read):
                with contextlib.suppress(OSError):
                    pipe.close()


def _decode_error(said: dict[str, Any]) -> Exception:
    """An error of the house as it was; all others are bugs, or the system's."""
    kind = getattr(errors, str(said.get("kind")), None)
    words = [str(word) for word in said.get("words", ())][:3]
    if isinstance(kind, type) and issubclass(kind, StudioError):
        return kind(*words)
    if said.get("kind") == "OSError":
        return OSError(*words)
    if said.get("kind") == "MemoryError":
        return _resource_error()
    return RuntimeError(" ".join(words)[:500])


def _resource_error() -> RequestError:
    return RequestError(
        "this file takes too long or too much memory to open, so", "it cannot be used here", "give a smaller or simpler one"
    )


def _busy_error() -> Busy:
    return Busy("too many pictures and videos are being opened and", "one more must wait", "try again in a minute")


def _stopped_error() -> RequestError:
    return RequestError("this work", "was stopped", "start it again if you want it after all")


def _processor_limit_error(seconds: float | None) -> RequestError:
    return RequestError(
        "this work",
        f"may use {seconds or 0:.0f} s of processor time and needs more",
        "take a shorter or smaller video, or another format",
    )


def _budget_error(wait_seconds: float) -> Busy:
    minutes = math.ceil(wait_seconds / 60)
    used = "this hour's processor time for exports, films and projects"
    return Busy(used, "is used up, so one more must wait", f"try again in {minutes} min", wait_seconds)
