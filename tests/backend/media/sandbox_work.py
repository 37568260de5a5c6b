"""Calls for the sandbox's tests. The sandbox needs functions at the top of a module."""

import ctypes
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from backend.errors import ImageError
from backend.media.progress import report_share


def double(number: int) -> int:
    return 2 * number


def refuse() -> None:
    raise ImageError("image", "must be a picture", "choose another file")


def wait_for(gate: str, here: str) -> str:
    """Report the start in the file `here`, with the ids of this process and of a child process, and wait for the file `gate`."""
    child = subprocess.Popen(["sleep", "600"])
    part = Path(here).with_suffix(".part")
    part.write_text(f"{os.getpid()} {child.pid}")
    part.rename(here)
    while not Path(gate).exists():
        time.sleep(0.01)
    child.kill()
    child.wait()
    return "done"


def report_half_and_wait(gate: str, here: str) -> str:
    """Report that half of the work is done, then do the same as `wait_for`."""
    report_share(0.5)
    return wait_for(gate, here)


def burn(seconds: float) -> None:
    """Use `seconds` of processor time in a child process."""
    code = f"import time\nwhile time.process_time() < {seconds}: pass"
    subprocess.run([sys.executable, "-c", code], check=True)


def connect() -> str:
    """Return the name of the error that opening a socket raises."""
    try:
        socket.socket().close()
    except OSError as error:
        return type(error).__name__
    return ""


def connect_in_a_child() -> str:
    code = "from tests.backend.media.sandbox_work import connect; print(connect())"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def trace(pid: int) -> int:
    """Return the error number with which the kernel refuses to trace this process, 0 if tracing is allowed."""
    library = ctypes.CDLL(None, use_errno=True)
    return 0 if library.ptrace(16, pid, 0, 0) == 0 else ctypes.get_errno()  # PTRACE_ATTACH


def fill(megabytes: int) -> int:
    return len(bytearray(megabytes * 1_000_000))


def end() -> None:
    os._exit(3)


def answer_with_an_object() -> object:
    return object()
