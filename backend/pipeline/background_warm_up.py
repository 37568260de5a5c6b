"""Prepare a video's programs in a background thread while the model's weights are read.

Stored programs are loaded from their files, others are compiled. Reading waits for the disk while preparing needs the processor,
so both can run at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from backend.models.model import Model
from backend.pipeline.warm_up import warm_up
from backend.schemas.events import Event
from backend.schemas.request import GenerationRequest

logger = logging.getLogger(__name__)


class BackgroundWarmUp:
    """Context manager that prepares programs in a thread while the `with` block runs.

    At the end of the block, the context manager waits for the program in progress. A program that fails here is prepared again
    later, and that attempt reports the error. Without a `request`, nothing is prepared.
    """

    def __init__(self, model: Model, request: GenerationRequest | None, on_event: Callable[[Event], None]) -> None:
        self._model, self._request, self._on_event = model, request, on_event
        self._is_closed = threading.Event()
        self._last_event: Event | None = None
        self._thread = threading.Thread(target=self._prepare_programs, name="background-warm-up", daemon=True)

    def __enter__(self) -> BackgroundWarmUp:
        if self._request is not None:
            self._thread.start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Wait for the thread, unless the block raised an error. After an error the model is not used, and the wait could take
        minutes."""
        self._is_closed.set()
        if error is not None or self._request is None:
            return
        if self._thread.is_alive() and self._last_event is not None:
            self._on_event(self._last_event)
        self._thread.join()

    def _prepare_programs(self) -> None:
        assert self._request is not None, "without one the thread is not started"
        try:
            for event in warm_up(self._model, self._request):
                self._last_event = event
                if self._is_closed.is_set():
                    return
        except Exception as error:  # the later warm-up raises the same error, with an explanation
            logger.info("A program could not be prepared in the background (%s)", error)
