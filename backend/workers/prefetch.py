"""Load a model that will be needed, and compile its programs, with idle processor time while the worker generates."""

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
    """Loads a model and then compiles the programs of `shape`, if given, in a thread. `load` and `compile_ahead` get a function,
    and must call it with each event. Events go to the listener of `wait`."""

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
        return self._thread.is_alive()

    def abandon(self) -> None:
        """Stop the loading and wait about a second for its end. A running compilation continues."""
        self._is_stopped.set()
        while self._thread.is_alive() and not self._is_compiling.wait(0.01):
            pass

    def wait(self, shape: Shape | None, listener: Report) -> None:
        """Wait until the model is loaded. Also wait for its programs if they are for `shape`, else abandon their compilation.
        Events go to the listener from now on. Raises: any exception of the listener."""
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
        if self._is_loaded.is_set():
            self._is_compiling.set()
        if self._is_stopped.is_set():
            raise Stopped
        if self._listener is not None:
            try:
                self._listener(event)
            except BaseException as error:
                self._error = error
                raise Stopped from error

    def _run(self) -> None:
        # This thread, and threads that it starts, get only idle processor time.
        with contextlib.suppress(AttributeError, OSError):  # the system lacks SCHED_IDLE, or the container forbids it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        try:
            self._load(self._report)
            self._is_loaded.set()
            self._compile_ahead(self._report)
        except Stopped:
            pass
        except StudioError as error:  # the job that needs the model raises and explains the error again
            logger.info("The next model could not be loaded ahead (%s)", error)
        except Exception as error:
            logger.warning("The next model could not be loaded ahead (%s)", one_line(str(error))[:200])
