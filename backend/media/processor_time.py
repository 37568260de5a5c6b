"""Reads the processor time of processes from /proc."""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
# Positions in /proc/PID/stat after the process name: the session, and the first of the four processor times.
_SESSION, _FIRST_TIME, _TIMES = 3, 11, 4


def session_seconds(session: int) -> float:
    """Return the processor seconds of all processes in a session, including their finished children."""
    ticks = 0
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended
        if int(fields[_SESSION]) == session:
            ticks += sum(map(int, fields[_FIRST_TIME : _FIRST_TIME + _TIMES]))
    return ticks / _TICKS
