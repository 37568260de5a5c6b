"""Explain how a worker process ended, from its exit code and the system's counters."""

import signal
from pathlib import Path

from backend.schemas.events import Interrupted

DEVICE_LOST = 71
"""The exit code of a worker whose devices can no longer be used."""
LOST = 256
"""Replaces the unknown exit code of a worker whose machine can no longer be reached."""
HOST_LOST = 257
"""Replaces the exit code of a multihost worker that was ended because a host no longer answers."""
_VMSTAT = Path("/proc/vmstat")


def explain_exit(code: int, log: Path, was_out_of_memory: bool, reason: str = "") -> Interrupted:
    """Return the event that explains why the job was interrupted. `was_out_of_memory`: the system killed a process for lack of
    memory since the worker started. `reason`: why the engine killed the worker, or what the worker reported, or ""."""
    advice = f"Generate it again; if it stops again, the reason is at the end of {log}"
    if code == LOST:
        return Interrupted(cause="The machine of its worker was lost", fix="Generate it again", by="loss")
    if code == HOST_LOST:
        return Interrupted(cause=reason or f"The worker {describe_exit_code(code)}", fix=advice, by="signal")
    if reason:
        return Interrupted(cause=reason, fix=advice, by="worker")
    if -code == signal.SIGKILL and was_out_of_memory:
        cause = "The machine ran out of memory, and the system ended the worker"
        return Interrupted(cause=cause, fix="Choose a smaller size or fewer frames, or free memory on the machine", by="worker")
    if -code in (signal.SIGKILL, signal.SIGTERM):
        cause = f"The worker was killed by {signal.Signals(-code).name}, from outside"
        return Interrupted(cause=cause, fix=f"{advice}, unless the worker was killed on purpose", by="signal")
    return Interrupted(cause=f"The worker {describe_exit_code(code)}", fix=advice, by="worker")


def describe_exit_code(code: int) -> str:
    if code == LOST:
        return "is lost: its machine cannot be reached"
    if code == HOST_LOST:
        return "is ended: one of its hosts does not answer any more"
    if code < 0:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def count_out_of_memory_kills() -> int:
    """Return how many processes the system killed for lack of memory since it started, 0 if that is not known."""
    try:
        rows = (line.split() for line in _VMSTAT.read_text().splitlines())
        return next((int(value) for name, value in rows if name == "oom_kill"), 0)
    except (OSError, ValueError):
        return 0
