"""Start the project's modules as processes that end when their parent process ends, even if they are blocked.

`python -m backend.child_process PIPE MODULE WORD...` runs the module. PIPE is one end of a pipe; only the parent holds the other
end, which closes when the parent ends. On Linux the kernel then kills the child, even if native code or a lock blocks it.
PR_SET_PDEATHSIG is not used: it kills the child when the thread that started the child ends, not when the parent ends.
"""

import fcntl
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any


def start_module(module: str, words: Sequence[str], env: Mapping[str, str] | None, **options: Any) -> subprocess.Popen[Any]:
    """Start `python -m MODULE WORD...` as a process that ends when this process ends. `options` are for `subprocess.Popen`.

    If the new process has its own session, its child processes end too. Without `env`, it has the environment of this process.
    """
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "backend.child_process", str(reading), module, *words]
    try:
        process = subprocess.Popen(command, env=env, pass_fds=(reading,), **options)
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    weakref.finalize(process, os.close, writing)
    return process


def write_message(message: Mapping[str, object]) -> None:
    """Write one JSON line to standard output immediately. Only modules in separate processes call this."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def end_with_parent(pipe: int) -> None:
    """Kill this process as soon as the other end of the pipe is closed."""
    os.set_inheritable(pipe, False)
    if hasattr(fcntl, "F_SETSIG"):
        owner = -os.getpid() if os.getpgrp() == os.getpid() else os.getpid()
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETOWN, owner)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([pipe], [], [], 0)[0]:  # the parent ended before the signal was set up
        os._exit(1)
    # Only Linux sends a signal when the pipe closes. On other systems this thread ends the process.
    threading.Thread(target=_wait_for_end, args=(pipe,), name="parent", daemon=True).start()


def _wait_for_end(pipe: int) -> None:
    os.read(pipe, 1)
    os._exit(1)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
