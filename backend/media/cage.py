"""The cage: a few processes that open strangers' files, pictures as well as videos, however many requests there are.

Whatever a file does to the code that reads it happens in there: a process has limits of memory, a piece of work has a limit of
time, and both end with the process, which is started again. A visitor has one place in it, and a few requests that wait; so has
an address, and work on clips never takes all places. Whoever waits does so without a thread, in `opened`; a caller who goes takes
the work along. What work returns must be plain JSON values, because nothing that a process in the cage says is run here; larger
results are files.
"""

import asyncio
import contextlib
import functools
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, TypeVar

from backend import errors
from backend.errors import Busy, RequestError, StudioError
from backend.media.cage_wire import read_reply, write_work
from backend.settings import module_environment

AT_ONCE = 2  # a picture of 50 million pixels takes 200 MB once decoded, and as much again where it is changed
MOST_WAITING = 64
MOST_OF_VISITOR = 4
MOST_OF_ADDRESS = 16
PATIENCE_SECONDS = 60.0  # that a request waits for its turn: a picture takes a few seconds, so this is a long line
QUICK_SECONDS = 20.0  # for one piece of work: a picture of 50 million pixels takes 2 to 4
LONG_SECONDS = 60.0
EXPORT_SECONDS = 300.0  # for writing a video of many frames, such as a comparison
LARGEST_KEPT = 200_000_000  # bytes: a process that has become larger is replaced, since freed memory stays with it

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Opening:
    """A piece of work: a function at the top of a module, what it is given, and the seconds that it may take."""

    work: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    seconds: float = QUICK_SECONDS

    @property
    def is_long(self) -> bool:
        """Whether this is no single picture: such work never takes all places."""
        return self.seconds > QUICK_SECONDS


@dataclass(frozen=True, kw_only=True)
class For:
    """For whom a file is opened: a visitor's owner name, and their address. Empty ones are not limited."""

    owner: str = ""
    address: str = ""


NOBODY = For()
Result = TypeVar("Result")
Steps = Generator[Opening, Any, Result]
"""What a caller does around openings: yields each, is given its value, and returns its own result. See `Cage.follow`."""


@dataclass(eq=False)
class _Ticket:
    """A request's place in line, and later in a process."""

    opening: Opening
    who: For
    future: Future = field(default_factory=Future)
    process: "_Process | None" = None
    is_given_up: bool = False


class Cage:
    """Runs openings, `at_once` at a time. The processes start when they are first needed, or with `start`."""

    def __init__(
        self,
        at_once: int = AT_ONCE,
        patience_seconds: float = PATIENCE_SECONDS,
        most_waiting: int = MOST_WAITING,
        most_of_visitor: int = MOST_OF_VISITOR,
    ):
        self._at_once, self._patience_seconds = at_once, patience_seconds
        self._most_waiting, self._most_of_visitor = most_waiting, most_of_visitor
        self._line: list[_Ticket] = []
        self._at_work: list[_Ticket] = []
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._modules: Sequence[str] = ()
        self._is_closed = False

    def start(self, modules: Sequence[str] = ()) -> None:
        """Starts the processes ahead, with these modules imported, so that the first picture waits for nothing."""
        self._modules = modules
        with self._changed:
            while not self._is_closed and len(self._threads) < self._at_once:
                self._add_thread()

    def run(self, opening: Opening, who: For = NOBODY) -> Any:
        """What the work returns or raises; for callers with a thread of their own. Raises: Busy if there is no place in line or
        its turn does not come in time, RequestError if it takes too long or too much memory."""
        ticket = self._enter(opening, who)
        try:
            return ticket.future.result(self._patience_seconds)
        except TimeoutError:
            if ticket.future.done() or not self._end_waiting(ticket):  # it has begun, and has a limit of its own
                return ticket.future.result()
            raise _too_busy() from None
        except CancelledError:
            raise _too_busy() from None

    async def opened(self, opening: Opening, who: For = NOBODY) -> Any:
        """As `run`, for callers in an event loop: waits without a thread. If the caller is cancelled, the work ends too."""
        ticket = self._enter(opening, who)
        patience = asyncio.get_running_loop().call_later(self._patience_seconds, self._end_waiting, ticket)
        try:
            return await asyncio.wrap_future(ticket.future)
        except asyncio.CancelledError:
            if ticket.is_given_up:
                raise _too_busy() from None
            self._give_up(ticket)
            raise
        finally:
            patience.cancel()

    def follow(self, steps: Steps[Result], who: For = NOBODY) -> Result:
        """The result of these steps, with each opening done by `run`."""
        move = functools.partial(next, steps)
        try:
            while True:
                opening = move()
                try:
                    move = functools.partial(steps.send, self.run(opening, who))
                except Exception as error:
                    move = functools.partial(steps.throw, error)
        except StopIteration as end:
            return end.value

    async def followed(
        self, steps: Steps[Result], who: For = NOBODY, undo: Callable[[Result], object] = lambda result: None
    ) -> Result:
        """As `follow`, with each opening done by `opened`, and what is between them in a thread.

        If the caller is cancelled, the steps are closed: at once while they wait for an opening, else as soon as their thread has
        come to the next. If it comes to the result instead, `undo` is given that, since nobody else will be.
        """
        move = functools.partial(next, steps)
        while True:
            moving = asyncio.ensure_future(asyncio.to_thread(_moved, move))
            try:
                opening, result = await asyncio.shield(moving)
            except asyncio.CancelledError:
                moving.add_done_callback(functools.partial(_end_steps, steps, undo))
                raise
            if opening is None:
                return result
            try:
                move = functools.partial(steps.send, await self.opened(opening, who))
            except asyncio.CancelledError:
                steps.close()
                raise
            except Exception as error:
                move = functools.partial(steps.throw, error)

    def close(self) -> None:
        """Takes no more work, drops the work that waits, and ends the processes, whatever they do."""
        with self._changed:
            self._is_closed = True
            line, at_work, self._line = self._line, list(self._at_work), []
            self._changed.notify_all()
        for ticket in line:
            ticket.is_given_up = True
            ticket.future.cancel()
        for ticket in at_work:
            self._give_up(ticket)

    def _enter(self, opening: Opening, who: For) -> _Ticket:
        ticket = _Ticket(opening, who)
        with self._changed:
            own = sum(bool(who.owner) and who.owner == other.who.owner for other in self._line)
            near = sum(bool(who.address) and who.address == other.who.address for other in self._line)
            is_full = len(self._line) >= self._most_waiting or own >= self._most_of_visitor or near >= MOST_OF_ADDRESS
            if self._is_closed or is_full:
                raise _too_busy()
            self._line.append(ticket)
            if len(self._threads) < self._at_once and len(self._at_work) + len(self._line) > len(self._threads):
                self._add_thread()
            self._changed.notify()
        return ticket

    def _end_waiting(self, ticket: _Ticket) -> bool:
        """Takes the request out of the line; False if it is no longer there."""
        with self._changed:
            if ticket not in self._line:
                return False
            self._line.remove(ticket)
            ticket.is_given_up = True
        ticket.future.cancel()
        return True

    def _give_up(self, ticket: _Ticket) -> None:
        """Takes the work out of the line, or ends the process that does it."""
        with self._changed:
            ticket.is_given_up = True
            if ticket in self._line:
                self._line.remove(ticket)
            process = ticket.process
        if process is not None:
            process.kill()

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="cage", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        """One thread of this process for each process in the cage."""
        process = None
        try:
            while (process := process or self._started()) is not None and (ticket := self._next()) is not None:
                ticket.process = process
                try:
                    if not ticket.is_given_up:
                        _settle(ticket, process)
                finally:
                    with self._changed:
                        ticket.process = None
                        self._at_work.remove(ticket)
                        self._changed.notify_all()
                if not process.is_fit:
                    process.kill()
                    process = None
        finally:
            if process is not None:
                process.kill()

    def _started(self) -> "_Process | None":
        return None if self._is_closed else _Process(self._modules)

    def _next(self) -> _Ticket | None:
        """The first in line who may have a place; None once the cage is closed."""
        with self._changed:
            while not self._is_closed:
                ticket = next((ticket for ticket in self._line if self._may_begin(ticket)), None)
                if ticket is not None:
                    self._line.remove(ticket)
                    self._at_work.append(ticket)
                    return ticket
                self._changed.wait()
            return None

    def _may_begin(self, ticket: _Ticket) -> bool:
        who, others = ticket.who, self._at_work
        if any(who.owner and who.owner == other.who.owner for other in others):
            return False
        if any(who.address and who.address == other.who.address for other in others):
            return False
        long = sum(other.opening.is_long for other in others)
        return not ticket.opening.is_long or self._at_once == 1 or long < self._at_once - 1


def _moved(move: Callable[[], Opening]) -> tuple[Opening | None, Any]:
    """The next opening, or None and the result: a future cannot carry StopIteration."""
    try:
        return move(), None
    except StopIteration as end:
        return None, end.value


def _end_steps(steps: Steps[Result], undo: Callable[[Result], object], moving: asyncio.Future) -> None:
    """Ends steps whose caller went while a thread moved them on."""
    if moving.cancelled() or moving.exception() is not None:  # the studio ends; or they have ended with an error of their own
        return
    opening, result = moving.result()
    if opening is None:
        undo(result)
    steps.close()


class _Process:
    """One process in the cage."""

    def __init__(self, modules: Sequence[str]):
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")  # each maps memory for its threads
        self._process = subprocess.Popen(
            [sys.executable, "-m", "backend.media.cage_process", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=module_environment() | one_thread,
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None, "it has pipes"
        self._written, self._read = self._process.stdin, self._process.stdout
        self._has_ended, self._lock = False, threading.Lock()
        self.is_fit = True

    def do(self, opening: Opening) -> Any:
        """What the work returns or raises. Raises: RequestError if it takes too long or ends the process."""
        timer = threading.Timer(opening.seconds, self.kill, kwargs={"is_waited_for": False})
        timer.daemon = True
        timer.start()
        try:
            write_work(self._written, opening.work, opening.arguments)
            reply = read_reply(self._read)
        except (OSError, ValueError, EOFError):
            self.is_fit = False
            raise _gave_way() from None
        finally:
            timer.cancel()
        self.is_fit = not self._has_ended and reply.get("memory", 0) < LARGEST_KEPT
        if "error" in reply:
            raise _error(reply["error"])
        return reply.get("value")

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


def _settle(ticket: _Ticket, process: _Process) -> None:
    """Does the work and gives the caller, if there still is one, its result."""
    try:
        give = functools.partial(ticket.future.set_result, process.do(ticket.opening))
    except Exception as error:
        give = functools.partial(ticket.future.set_exception, error)
    with contextlib.suppress(InvalidStateError):
        give()


def _error(said: dict[str, Any]) -> Exception:
    """An error of the house as it was; all others are bugs, or the system's."""
    kind = getattr(errors, str(said.get("kind")), None)
    words = [str(word) for word in said.get("words", ())][:3]
    if isinstance(kind, type) and issubclass(kind, StudioError):
        return kind(*words)
    if said.get("kind") == "OSError":
        return OSError(*words)
    if said.get("kind") == "MemoryError":
        return _gave_way()
    return RuntimeError(" ".join(words)[:500])


def _gave_way() -> RequestError:
    return RequestError(
        "this file takes too long or too much memory to open, so", "it cannot be used here", "give a smaller or simpler one"
    )


def _too_busy() -> Busy:
    return Busy("too many pictures and videos are being opened and", "one more must wait", "try again in a minute")
