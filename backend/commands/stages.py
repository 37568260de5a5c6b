"""The commands `encode`, `denoise` and `decode`, started in a process of their own: this one stays without JAX."""

import signal
import subprocess
import sys
from collections.abc import Sequence

from backend.settings import module_environment

_STOP_SECONDS = 600.0  # a step of the largest model, and writing down how far it came


def run_stage(words: Sequence[str]) -> int:
    """`python -m backend.commands.stages_run` with these words, on this process's own output; its exit code.

    Ctrl+C and a polite end are passed on, once, and what the stage has to write down then is waited for.
    """
    command = [sys.executable, "-m", "backend.commands.stages_run", *words]
    with subprocess.Popen(command, env=module_environment(), start_new_session=True) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
            return _ended(process)


def _ended(process: subprocess.Popen) -> int:
    """Its exit code, when it has written down how far it came; a second Ctrl+C ends it at once."""
    try:
        return process.wait(_STOP_SECONDS)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        process.kill()
        return process.wait() or 1
