"""Several hosts on one machine for tests: processes of `app.py member` next to an engine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from backend.multihost.transport import free_port
from backend.schemas.worker import Hosts
from backend.settings import PROJECT_FOLDER

SECRET = "a secret of the tests that nobody guesses"


def hosts(count: int) -> Hosts:
    """Return the settings of `count` hosts, which meet on a free port."""
    return Hosts(count=count, address="127.0.0.1", port=free_port("127.0.0.1"), secret=SECRET)


def start_member(of: Hosts, index: int, folder: Path, **changes: str) -> subprocess.Popen:
    """Start `app.py member` with its own data folder. `changes` are added to its environment."""
    words = ["--coordinator", f"{of.address}:{of.port}", "--process-id", str(index), "--num-processes", str(of.count)]
    return subprocess.Popen(
        [sys.executable, "app.py", "member", *words, "--data-dir", str(folder)],
        cwd=PROJECT_FOLDER,
        env={**os.environ, "STUDIO_HOSTS_SECRET": of.secret, **changes},
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def members(of: Hosts, folder: Path, **changes: str) -> Iterator[list[subprocess.Popen]]:
    """Start all hosts except the first, and end them afterwards."""
    started = [start_member(of, index, folder / f"host-{index}", **changes) for index in range(1, of.count)]
    try:
        yield started
    finally:
        for member in started:
            end_member(member)


def end_member(member: subprocess.Popen) -> str:
    """End a member as a service manager does, and return its error output."""
    member.terminate()
    return member.communicate()[1]


def processes_of(*parents: int) -> list[int]:
    """Return the running child processes of these processes."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) in parents and state != "Z":
                found.append(int(stat.parent.name))
    return sorted(found)
