"""Two threads that decode pictures and videos, however many requests there are. Decodes nothing itself.

These are fixed threads, not a limit on the callers' threads: the C library keeps freed memory for the thread that freed it, so
many threads that decode in turn hold as much memory as if they decoded at once (measured: 64 previews of a picture of 49 million
pixels, two at a time in 16 threads, left the server at 2.7 GB).
"""

from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from backend.errors import Busy

AT_ONCE = 2  # a picture of 50 million pixels takes 200 MB once decoded, and as much again where it is changed
PATIENCE_SECONDS = 60.0  # such a picture takes a few seconds, so this is a long line

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Decoding:
    """Runs decoding work, `at_once` pieces at a time. Such work must not call `run` itself: it might wait for itself."""

    def __init__(self, at_once: int = AT_ONCE, patience_seconds: float = PATIENCE_SECONDS):
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="decoding")
        self._patience_seconds = patience_seconds

    def run(self, work: Callable[Arguments, Result], *arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        """What the work returns or raises. Raises: Busy if its turn does not come in time."""
        try:
            future = self._threads.submit(work, *arguments, **options)
        except RuntimeError:
            raise _too_busy() from None  # closed
        try:
            return future.result(self._patience_seconds)
        except TimeoutError:
            if future.done() or not future.cancel():  # it has begun, and ends by itself
                return future.result()
            raise _too_busy() from None
        except CancelledError:
            raise _too_busy() from None

    def close(self) -> None:
        """Takes no more work and drops the work that waits."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _too_busy() -> Busy:
    return Busy("too many pictures and videos are being opened and", "one more must wait", "try again in a minute")
