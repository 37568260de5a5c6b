"""Keeps the memory of a server with many threads flat."""

import contextlib
import ctypes

_M_ARENA_MAX = -8  # of glibc's malloc.h


def use_one_malloc_arena() -> None:
    """Lets all threads share one heap. Call it before there are threads.

    glibc gives each thread a heap of its own, up to eight for each core, and what is free in one is of no use to the others
    (docs/lab/cpu.md has the figures). Other C libraries have one heap, so nothing happens there.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
