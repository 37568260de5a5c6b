"""The commands `encode`, `denoise`, `decode` and `measure-cache`: starts each in a process of its own, so that this process needs
no JAX."""

import signal
import subprocess
from collections.abc import Sequence

from backend.child_process import start_module
from backend.settings import module_environment

_MODULES = {"measure-cache": "backend.cli.measure_cache_run"}
_STOP_SECONDS = 20.0  # the stage ends within `backend.cli.stages_run.STOP_SECONDS`


def run_stage(words: Sequence[str]) -> int:
    """Runs `backend.cli.stages_run`, or the command's own module, with these words, on this process's own output; its exit
    code.

    Ctrl+C is passed on once, as SIGTERM; then this waits until the stage has written its state. The stage ends with this process.
    """
    module = _MODULES.get(words[0], "backend.cli.stages_run")
    with start_module(module, words, module_environment(), start_new_session=True) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
            return _wait_for_stop(process)


def _wait_for_stop(process: subprocess.Popen) -> int:
    """The exit code, once the process has written its state; a second Ctrl+C ends it at once."""
    try:
        return process.wait(_STOP_SECONDS)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        process.kill()
        return process.wait() or 1
