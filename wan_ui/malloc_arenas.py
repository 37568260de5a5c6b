"""Stop the memory of a server with many threads from growing."""

import contextlib
import ctypes

_M_ARENA_MAX = -8  # from glibc's malloc.h


def use_one_malloc_arena() -> None:
    """Make all threads share one memory arena. Call this before other threads start.

    glibc creates up to eight arenas per core for its threads, and free memory of one arena cannot serve the others
    (docs/lab/cpu.md has the figures). Other C libraries have a single arena and ignore this call.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
