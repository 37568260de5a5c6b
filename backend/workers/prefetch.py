"""Brings a model that will be needed, and makes programs ready, beside what the worker does: in a thread to which the system
gives only the time that nobody else wants, so that the steps of a video take no longer."""

import contextlib
import logging
import os
import threading
from collections.abc import Callable

from backend.errors import Stopped, StudioError, one_line
from backend.schemas.events import Event
from backend.schemas.shape import Shape

logger = logging.getLogger(__name__)

Report = Callable[[Event], None]
Key = tuple[str, str]


class Prefetch:
    """A model on its way, and then the programs of one `shape`, if one is given. `load` and `compile_ahead` are given what to
    tell their events to; whoever waits for them hears those."""

    def __init__(
        self,
        key: Key,
        load: Callable[[Report], object],
        shape: Shape | None = None,
        compile_ahead: Callable[[Report], object] = lambda tell: None,
    ):
        self.key, self.shape = key, shape
        self._load, self._compile_ahead = load, compile_ahead
        self._listener: Report | None = None
        self._error: BaseException | None = None
        self._is_stopped, self._is_loaded, self._is_compiling = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="fetch", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether there is still something to do."""
        return self._thread.is_alive()

    def abandon(self) -> None:
        """Gives it up. A model is given up within a second or so; a program that is being compiled comes to its end, and nobody
        waits for that."""
        self._is_stopped.set()
        while self._thread.is_alive() and not self._is_compiling.wait(0.01):
            pass

    def wait(self, shape: Shape | None, listener: Report) -> None:
        """Waits until the model has come, and for the programs if they are those of this shape; else these are given up. Events
        go to the listener from now on. If that raises something, this does."""
        self._listener = listener
        while self._thread.is_alive() and not self._is_loaded.wait(0.01):
            pass
        if self._error is None and shape == self.shape:
            self._thread.join()
        else:
            self.abandon()
        if self._error is not None:
            raise self._error

    def _report(self, event: Event) -> None:
        if self._is_stopped.is_set():
            raise Stopped
        if self._listener is not None:
            try:
                self._listener(event)
            except BaseException as error:
                self._error = error
                raise Stopped from error

    def _report_compilation(self, event: Event) -> None:
        self._is_compiling.set()
        self._report(event)

    def _run(self) -> None:
        """The threads that this one starts are as patient as it is."""
        with contextlib.suppress(AttributeError, OSError):  # a system without it, or a container that forbids it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        try:
            self._load(self._report)
            self._is_loaded.set()
            self._compile_ahead(self._report_compilation)
        except Stopped:
            pass
        except StudioError as error:  # it comes again when the job begins, and is explained there
            logger.info("What will be needed could not be made ready (%s)", error)
        except Exception as error:
            logger.warning("What will be needed could not be made ready (%s)", one_line(str(error))[:200])
