"""Kill the workers of dead servers.

A worker ends when its server dies. A worker that is stopped by SIGSTOP cannot end, so it would keep its memory and devices.
"""

import contextlib
import logging
import os
import signal
from pathlib import Path

from backend.settings import DATA_VARIABLE

SERVER_VARIABLE = "STUDIO_SERVER_PID"
"""The environment variable of a worker that holds its server's process id."""
_PROCESSES = Path("/proc")

logger = logging.getLogger(__name__)


def kill_stale_workers(data_dir: Path) -> list[int]:
    """Kill the workers of this data folder whose server is no longer their parent. Return the process ids of these workers.

    Do nothing if the system does not list processes in /proc.
    """
    stale = [int(folder.name) for folder in _PROCESSES.glob("[0-9]*") if _is_stale_worker(folder, data_dir)]
    for pid in stale:
        logger.warning("Killing worker %d: its server has exited", pid)
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
    except OSError:  # the process has ended, or belongs to another user
        return False
    is_worker = group == folder.name  # a worker leads its process group; the processes that it started do not
    return is_worker and environment[SERVER_VARIABLE] != parent
