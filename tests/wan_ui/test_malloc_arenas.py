"""Tests that the server's threads share one heap, so that its memory does not grow."""

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, threading
from wan_ui.malloc_arenas import use_one_malloc_arena
{call}
held, kept = [threading.Event(), threading.Event()], []
def work():
    kept.append(ctypes.create_string_buffer(4096)); held[0].set(); held[1].wait()
for _ in range(6):
    held[0].clear(); threading.Thread(target=work).start(); held[0].wait()
ctypes.CDLL(None).malloc_info(0, ctypes.c_void_p.in_dll(ctypes.CDLL(None), "stdout"))
ctypes.CDLL(None).fflush(None); held[1].set()
"""


def heaps(call: str) -> int:
    """Return the number of heaps that glibc reports for a process with six threads."""
    return subprocess.run([sys.executable, "-c", PROGRAM.format(call=call)], capture_output=True, check=True).stdout.count(
        b"<heap nr"
    )


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="another C library than glibc")
def test_threads_use_one_malloc_arena():
    assert heaps("use_one_malloc_arena()") == 1 < heaps("")
