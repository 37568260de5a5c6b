"""Ends the workers that a dead server has left.

A worker notices its server's death itself, unless it is stopped (SIGSTOP): then it keeps its memory and its devices for ever.
"""

import contextlib
import logging
import os
import signal
from pathlib import Path

from backend.settings import DATA_VARIABLE

SERVER_VARIABLE = "STUDIO_SERVER_PID"
"""Names a worker's server in the worker's environment."""
_PROCESSES = Path("/proc")

logger = logging.getLogger(__name__)


def kill_stale_workers(data_dir: Path) -> list[int]:
    """Kills the workers on this data folder whose server is no longer their parent; returns their ids. Does nothing where the
    system does not list processes in /proc."""
    stale = [int(folder.name) for folder in _PROCESSES.glob("[0-9]*") if _is_stale_worker(folder, data_dir)]
    for pid in stale:
        logger.warning("Ending worker %d, which a dead server has left", pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    return stale


def _is_stale_worker(folder: Path, data_dir: Path) -> bool:
    try:
        entries = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        if environment.get(DATA_VARIABLE) != str(data_dir) or SERVER_VARIABLE not in environment:
            return False
        _, parent, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:  # it has ended, or is somebody else's
        return False
    is_worker = group == folder.name  # and not one of the processes that a worker has started
    return is_worker and environment[SERVER_VARIABLE] != parent
