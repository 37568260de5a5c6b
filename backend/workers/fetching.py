"""Brings the model that the next job needs, while another job is being made: in a thread to which the system gives only the time
that nobody else wants, so that the steps take no longer."""

import logging
import os
import threading
from collections.abc import Callable

from backend.contract.events import Event
from backend.errors import Stopped, StudioError, one_line

logger = logging.getLogger(__name__)

Load = Callable[[Callable[[Event], None]], object]


class Fetch:
    """One model on its way. `load` is given what to tell its events to; whoever waits for it hears them."""

    def __init__(self, key: tuple[str, str], load: Load):
        self.key = key
        self._load, self._listener, self._error = load, None, None
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fetch", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether it has neither come nor failed."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Gives it up, within a second or so."""
        self._is_stopped.set()
        self._thread.join()

    def wait(self, listener: Callable[[Event], None]) -> None:
        """Waits until it has come or failed; its events go to the listener from now on. If that raises something, this does."""
        self._listener = listener
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _tell(self, event: Event) -> None:
        if self._is_stopped.is_set():
            raise Stopped
        if self._listener is not None:
            try:
                self._listener(event)
            except BaseException as error:
                self._error = error
                raise Stopped from error

    def _run(self) -> None:
        """The threads that this one starts are as patient as it is."""
        if hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        try:
            self._load(self._tell)
        except Stopped:
            pass
        except StudioError as error:  # it comes again when the job begins, and is explained there
            logger.info("A model was not fetched (%s)", error)
        except Exception as error:
            logger.warning("A model was not fetched (%s)", one_line(str(error))[:200])
