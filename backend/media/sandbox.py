"""The sandbox: a few processes that open all files from visitors, images as well as videos.

A process has limits of memory, and each call has a time limit. A process that exceeds a limit is killed and replaced. Each
visitor and each address can have one call running and a few waiting, and work on clips never uses all processes. Callers in an
event loop wait in `run_async` without a thread; if a caller goes away, its call is stopped. Results must be plain JSON values,
because nothing that a sandbox process returns is executed here. Larger results are files.

Long work (`SandboxCall.task`: exports, films, comparisons, projects) gets a separate process, so that short work never waits for
it. The owner sees its progress and can stop it. Its processor time is limited per call, and per hour for each visitor, each
address and all visitors together.
"""

import asyncio
import contextlib
import functools
import json
import math
import os
import pickle
import secrets
import signal
import subprocess
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from backend import errors
from backend.budget import HourlyBudget
from backend.child_process import start_module
from backend.errors import Busy, RequestError, StudioError
from backend.media.processor_time import session_seconds
from backend.media.sandbox_wire import read_message, write_message
from backend.settings import module_environment

AT_ONCE = 2  # number of short calls that run at once, each within `sandbox_process.MEMORY_BYTES`
MOST_WAITING = 64
MOST_OF_VISITOR = 4
MOST_OF_ADDRESS = 16
QUICK_SECONDS = 20.0  # time limit of short work: an image of 50 million pixels takes 2 to 4 s
LONG_SECONDS = 60.0
EXPORT_SECONDS = 300.0  # time limit for writing a video of many frames, such as a comparison
TASK_PROCESSOR_SECONDS = 240.0  # processor seconds after which a long call is stopped
# Each long call takes at least this much from the hour's budget, because the start of its process needs 0.5 s (measured).
_LEAST_CHARGE_SECONDS = 1.0
_WATCH_SECONDS = 0.5  # interval at which the processor time of a long call is compared with its limit
MOST_REPLIED = 16_000_000  # bytes of a reply; larger replies are refused. The largest real replies are thumbnails in base64
LARGEST_KEPT = 200_000_000  # bytes; a process with more memory is replaced after its call, because it keeps freed memory
# The parts of three errors.
_BUSY = ("too many pictures and videos are being opened and", "no more can be opened now", "try again in a minute")
_STOPPED = ("this work", "was stopped", "start it again if needed")
_DEMANDING = (
    "this file takes too long or too much memory to open, so",
    "it cannot be used here",
    "give a smaller or simpler file",
)


@dataclass(frozen=True, kw_only=True)
class PoolLimits:
    """Limits of a pool: how many calls run at once, how many wait (in all, per visitor, per address), and the longest wait."""

    at_once: int
    waiting: int
    waiting_of_visitor: int
    waiting_of_address: int
    patience_seconds: float


_WAITING = {"waiting": MOST_WAITING, "waiting_of_visitor": MOST_OF_VISITOR, "waiting_of_address": MOST_OF_ADDRESS}
# A call that waits longer for a process is refused as "busy". An image takes a few seconds, and up to `MOST_WAITING` calls wait.
SHORT = PoolLimits(at_once=AT_ONCE, patience_seconds=60.0, **_WAITING)
TASKS = PoolLimits(at_once=1, waiting=8, waiting_of_visitor=2, waiting_of_address=4, patience_seconds=120.0)


@dataclass(frozen=True, kw_only=True)
class ProcessorBudget:
    """Processor seconds that long work may use per hour. By default, all visitors together use at most half of the time of two
    cores."""

    of_visitor: float = 600.0
    of_address: float = 1200.0
    in_all: float = 3600.0


BUDGET = ProcessorBudget()


@dataclass(frozen=True, kw_only=True)
class SandboxCall:
    """A function at the top of a module, its arguments and its time limit. `task` is the kind of long work, such as "export", or
    "" for short work. Long work that needs more processor time than `processor_seconds` is stopped."""

    work: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    seconds: float = QUICK_SECONDS
    task: str = ""
    processor_seconds: float = TASK_PROCESSOR_SECONDS

    @property
    def is_long(self) -> bool:
        """Such calls never use all processes of a pool."""
        return self.seconds > QUICK_SECONDS


@dataclass(frozen=True, kw_only=True)
class Requester:
    """The visitor who asked for a call. Limits per visitor or per address do not apply if that name or address is empty. The long
    work of the operator, without `has_budget`, is not counted."""

    owner: str = ""
    address: str = ""
    has_budget: bool = True


ANONYMOUS = Requester()
Result = TypeVar("Result")
Steps = Generator[SandboxCall, Any, Result]
"""Work around sandbox calls: yields each call, receives the value, and returns a result. See `SandboxPool.run_steps`."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """`share` is the finished part, from 0 to 1, or None while the call waits."""

    id: str
    kind: str
    share: float | None


@dataclass(eq=False)
class _Ticket:
    """A call in the queue, and later in a process."""

    call: SandboxCall
    who: Requester
    future: Future = field(default_factory=Future)
    process: "_Process | None" = None
    is_abandoned: bool = False
    is_stopped: bool = False
    share: float = 0.0
    id: str = field(default_factory=lambda: secrets.token_hex(8))


class SandboxPool:
    """Runs sandbox calls: at most `SHORT.at_once` short calls at a time, and long calls within the limits `tasks`. Processes for
    short calls start with `start` or when they are first needed, processes for long calls when they are needed."""

    def __init__(self, tasks: PoolLimits = TASKS, budget: ProcessorBudget = BUDGET, **limits: Any) -> None:
        """`limits` replace fields of `SHORT`."""
        self._short = _Pool(replace(SHORT, **limits))
        self._tasks = _Pool(tasks, HourlyBudget(budget.of_visitor, budget.of_address, budget.in_all))

    def start(self, modules: Sequence[str] = ()) -> None:
        """Import these modules in the processes for short work, so that the first calls do not wait for this."""
        self._short.start(modules)

    def run(self, call: SandboxCall, who: Requester = ANONYMOUS) -> Any:
        """Run the call and return its result or raise its error. Blocks the thread of the caller. Raises: Busy if the queue is
        full, the wait is too long, or the hour's processor time is used up; RequestError if the call exceeds its limits."""
        return (self._tasks if call.task else self._short).run(call, who)

    async def run_async(self, call: SandboxCall, who: Requester = ANONYMOUS) -> Any:
        """Run the call, like `run`, without blocking a thread. If the caller is cancelled, the call is stopped."""
        return await (self._tasks if call.task else self._short).run_async(call, who)

    def tasks(self, owner: str) -> list[Task]:
        """The owner's long calls, running ones first."""
        return self._tasks.tasks(owner)

    def stop_task(self, task_id: str, owner: str) -> bool:
        """Return False if the owner has no call with this id."""
        return self._tasks.stop_task(task_id, owner)

    def close(self) -> None:
        """Accept no more calls, drop the waiting calls, and kill the processes."""
        self._short.close()
        self._tasks.close()

    def run_steps(self, steps: Steps[Result], who: Requester = ANONYMOUS) -> Result:
        """Execute each yielded call with `run`."""
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
        """Run the generator `steps` like `run_steps`, with `run_async` for its calls and a thread for the code between them. If
        the caller is cancelled, the generator is closed: immediately if a call is running, otherwise when the generator's thread
        reaches the next call. If the generator finishes without another call, `undo` receives its result."""
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
    """The processes for one kind of work, and their queue. With a `budget`, processor time is limited and each call gets a new
    process."""

    def __init__(self, limits: PoolLimits, budget: HourlyBudget | None = None):
        self._limits, self._budget = limits, budget
        self._queue: list[_Ticket] = []
        self._running: list[_Ticket] = []
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._modules: Sequence[str] = ()
        self._is_closed = False

    def start(self, modules: Sequence[str] = ()) -> None:
        self._modules = modules
        with self._changed:
            while not self._is_closed and len(self._threads) < self._limits.at_once:
                self._add_thread()

    def run(self, call: SandboxCall, who: Requester = ANONYMOUS) -> Any:
        ticket = self._add_to_queue(call, who)
        try:
            return ticket.future.result(self._limits.patience_seconds)
        except TimeoutError:
            # A call that has started is not interrupted here, because its own time limit applies.
            if ticket.future.done() or not self._remove_waiting(ticket):
                return ticket.future.result()
            raise Busy(*_BUSY) from None
        except CancelledError:
            raise Busy(*_BUSY) from None

    async def run_async(self, call: SandboxCall, who: Requester = ANONYMOUS) -> Any:
        ticket = self._add_to_queue(call, who)
        patience = asyncio.get_running_loop().call_later(self._limits.patience_seconds, self._remove_waiting, ticket)
        try:
            return await asyncio.wrap_future(ticket.future)
        except asyncio.CancelledError:
            if ticket.is_abandoned:
                raise Busy(*_BUSY) from None
            self._abandon(ticket)
            raise
        finally:
            patience.cancel()

    def close(self) -> None:
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
        with self._changed:
            running = [(ticket, ticket.share) for ticket in self._running if ticket.who.owner == owner]
            waiting = [(ticket, None) for ticket in self._queue if ticket.who.owner == owner]
            return [Task(id=ticket.id, kind=ticket.call.task, share=share) for ticket, share in (*running, *waiting)]

    def stop_task(self, task_id: str, owner: str) -> bool:
        with self._changed:
            found = (ticket for ticket in (*self._running, *self._queue) if (ticket.id, ticket.who.owner) == (task_id, owner))
            ticket = next(found, None)
            if ticket is None:
                return False
            ticket.is_stopped = True
        self._abandon(ticket)
        with contextlib.suppress(InvalidStateError):
            ticket.future.set_exception(RequestError(*_STOPPED))
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
                raise Busy(*_BUSY)
            self._queue.append(ticket)
            if len(self._threads) < self._limits.at_once and len(self._running) + len(self._queue) > len(self._threads):
                self._add_thread()
            self._changed.notify()
        return ticket

    def _remove_waiting(self, ticket: _Ticket) -> bool:
        """Return False if the call is no longer in the queue."""
        with self._changed:
            if ticket not in self._queue:
                return False
            self._queue.remove(ticket)
            ticket.is_abandoned = True
        ticket.future.cancel()
        return True

    def _abandon(self, ticket: _Ticket) -> None:
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
        """Run calls in one sandbox process. Each process has a thread of the studio."""
        process = None
        try:
            while True:
                # A process for short work starts before a call needs it. A process for long work starts when a call needs it.
                if self._budget is None and (process := process or self._start_process()) is None:
                    return
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
                if not process.is_usable or self._budget is not None:
                    process.kill()
                    process = None
        finally:
            if process is not None:
                process.kill()

    def _run_ticket(self, ticket: _Ticket, process: "_Process") -> None:
        """Charge the processor time, and hand the result to the caller if the caller still waits."""
        try:
            seconds = self._processor_limit(ticket)
            give = functools.partial(ticket.future.set_result, process.execute(ticket.call, seconds, ticket))
        except Exception as error:
            give = functools.partial(ticket.future.set_exception, RequestError(*_STOPPED) if ticket.is_stopped else error)
        if self._budget is not None and ticket.who.has_budget:
            self._budget.add(ticket.who.owner, ticket.who.address, max(_LEAST_CHARGE_SECONDS, process.processor_seconds))
        with contextlib.suppress(InvalidStateError):
            give()

    def _processor_limit(self, ticket: _Ticket) -> float | None:
        """Return the limit of processor seconds for the call, None for none. Raises: Busy if this hour's budget is used up."""
        if self._budget is None:
            return None
        most, who = ticket.call.processor_seconds, ticket.who
        if not who.has_budget:
            return most
        left = self._budget.remaining(who.owner, who.address)
        if left <= 0:
            wait_seconds = self._budget.wait_seconds(who.owner, who.address)
            used = "this hour's processor time for exports, films and projects"
            raise Busy(used, "is used up", f"try again in {math.ceil(wait_seconds / 60)} min", wait_seconds)
        return min(most, left)

    def _start_process(self) -> "_Process | None":
        return None if self._is_closed else _Process(self._modules)

    def _take_ticket(self) -> _Ticket | None:
        """Wait until a queued call may start. Return None once the sandbox is closed."""
        with self._changed:
            while not self._is_closed:
                owners = {other.who.owner for other in self._running} - {""}
                addresses = {other.who.address for other in self._running} - {""}
                long = sum(other.call.is_long for other in self._running)
                may_be_long = self._limits.at_once == 1 or long < self._limits.at_once - 1
                for ticket in self._queue:
                    is_free = ticket.who.owner not in owners and ticket.who.address not in addresses
                    if is_free and (may_be_long or not ticket.call.is_long):
                        self._queue.remove(ticket)
                        self._running.append(ticket)
                        return ticket
                self._changed.wait()
            return None


def _next_call(move: Callable[[], SandboxCall]) -> tuple[SandboxCall | None, Any]:
    """Return (the next call, None), or at the end (None, the result), because the future of a thread cannot hold
    StopIteration."""
    try:
        return move(), None
    except StopIteration as end:
        return None, end.value


def _close_steps(steps: Steps[Result], undo: Callable[[Result], object], moving: asyncio.Future) -> None:
    """The caller of `steps` was cancelled while a thread ran the generator. If it has finished, `undo` gets its result."""
    if moving.cancelled() or moving.exception() is not None:  # the studio is ending, or the generator has raised an error
        return
    call, result = moving.result()
    if call is None:
        undo(result)
    steps.close()


class _Process:
    def __init__(self, modules: Sequence[str]):
        # Numerical libraries start one thread per core and map memory for each, which could exceed the memory limit.
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        environment = module_environment() | one_thread
        name = "backend.media.sandbox_process"
        self._process = start_module(name, modules, environment, start_new_session=True, **pipes)
        assert self._process.stdin is not None and self._process.stdout is not None, "it has pipes"
        self._written, self._read = self._process.stdin, self._process.stdout
        self._has_ended, self._lock = False, threading.Lock()
        self.is_usable = True
        self.processor_seconds = 0.0  # processor time of the process and its children; measured only if a call has a limit
        self._is_over_budget = False

    def execute(self, call: SandboxCall, processor_seconds: float | None = None, ticket: _Ticket | None = None) -> Any:
        """Return the result of the call or raise its error. `processor_seconds` limits its processor time. `ticket` receives
        the progress. Raises: RequestError if the call takes too long or ends the process."""
        timer = threading.Timer(call.seconds, self.kill, kwargs={"is_waited_for": False})
        timer.daemon = True
        timer.start()
        is_over = threading.Event()
        if processor_seconds is not None:
            limited = (processor_seconds, is_over)
            threading.Thread(target=self._enforce_processor_limit, args=limited, name="processor time", daemon=True).start()
        try:
            write_message(self._written, pickle.dumps((call.work, call.arguments)))
            while True:
                reply = json.loads(read_message(self._read, MOST_REPLIED))
                if not isinstance(reply, dict):
                    raise ValueError("this is no reply")
                if "share" not in reply:
                    break
                if ticket is not None and isinstance(reply["share"], int | float):
                    ticket.share = min(1.0, max(0.0, float(reply["share"])))
        except (OSError, ValueError, EOFError):
            self.is_usable = False
            if not self._is_over_budget:
                raise RequestError(*_DEMANDING) from None
            rule = f"may use {processor_seconds or 0:.0f} s of processor time and needs more"
            raise RequestError("this work", rule, "choose a shorter or smaller video, or another format") from None
        finally:
            timer.cancel()
            is_over.set()
            if processor_seconds is not None:  # after the process has ended, its time cannot be measured and stays unchanged
                self.processor_seconds = max(self.processor_seconds, session_seconds(self._process.pid))
        self.is_usable = not self._has_ended and reply.get("memory", 0) < LARGEST_KEPT
        if "error" in reply:
            raise _decode_error(reply["error"])
        return reply.get("value")

    def _enforce_processor_limit(self, most: float, is_over: threading.Event) -> None:
        while not is_over.wait(_WATCH_SECONDS):
            self.processor_seconds = max(self.processor_seconds, session_seconds(self._process.pid))
            if self.processor_seconds > most:
                self._is_over_budget = True
                self.kill(is_waited_for=False)
                return

    def kill(self, *, is_waited_for: bool = True) -> None:
        """Kill the process and its children. May be called twice, and from any thread."""
        with self._lock:
            if not self._has_ended:
                self._has_ended = True
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
        self.is_usable = False
        if is_waited_for:
            self._process.wait()
            for pipe in (self._written, self._read):
                with contextlib.suppress(OSError):
                    pipe.close()


def _decode_error(said: dict[str, Any]) -> Exception:
    """Unknown kinds of errors become RuntimeError."""
    kind = getattr(errors, str(said.get("kind")), None)
    words = [str(word) for word in said.get("words", ())][:3]
    if isinstance(kind, type) and issubclass(kind, StudioError):
        return kind(*words)
    if said.get("kind") == "OSError":
        return OSError(*words)
    if said.get("kind") == "MemoryError":
        return RequestError(*_DEMANDING)
    return RuntimeError(" ".join(words)[:500])
