"""Stop the memory of a server with many threads from growing."""

import contextlib
import ctypes

# The parameters of `mallopt`, from glibc's malloc.h
_M_ARENA_MAX = -8
_M_MMAP_THRESHOLD = -3
_MMAP_BYTES = 2**20


def use_one_malloc_arena() -> None:
    """Make all threads share one memory arena, and return large blocks to the system. Call this before other threads start.

    glibc creates up to eight arenas per core, and free memory of one arena cannot serve the others (docs/lab/cpu.md has the
    figures). After a large block was freed, glibc by default places blocks of up to 32 MB in the arena, where freed blocks leave
    gaps. A fixed threshold prevents this. Other C libraries ignore this call.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
