"""The commands `encode`, `denoise`, `decode` and `measure-cache`. Each runs in a separate process that loads JAX."""

import signal
import subprocess
from collections.abc import Sequence

from backend.child_process import start_module
from backend.settings import module_environment

_MODULES = {"measure-cache": "backend.cli.measure_cache_run"}
_STOP_SECONDS = 20.0  # more than `backend.cli.stages_run.STOP_SECONDS`, within which the stage ends


def run_stage(words: Sequence[str]) -> int:
    """Run `backend.cli.stages_run`, or the command's own module, with the command line `words`. Return its exit code.

    The stage writes to this process's standard output and error, and ends when this process ends. At the first Ctrl+C, this
    process sends SIGTERM to the stage and waits until the stage has written its state. The stage is killed at a second Ctrl+C,
    or after `_STOP_SECONDS`.
    """
    module = _MODULES.get(words[0], "backend.cli.stages_run")
    with start_module(module, words, module_environment(), start_new_session=True) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
            try:
                return process.wait(_STOP_SECONDS)
            except (KeyboardInterrupt, subprocess.TimeoutExpired):
                process.kill()
                return process.wait() or 1
