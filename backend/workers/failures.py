"""Convert a worker's exceptions to messages for visitors and to outcomes that hosts compare, and detect lost devices."""

from backend.errors import StudioError, is_memory_short, one_line
from backend.schemas.events import Failed
from backend.workers.multihost_sync import FAILED


def explain_error(error: Exception) -> Failed:
    """Convert an exception to a cause and a suggestion, one sentence each."""
    if isinstance(error, StudioError):
        return Failed(error.cause, error.fix or "Change the request, or see the worker's log")
    text = one_line(str(error))[:300]
    if is_memory_short(error):
        return Failed("There is not enough memory for this video", "Choose a smaller size or fewer frames")
    return Failed(
        f"{type(error).__name__}: {text}" if text else type(error).__name__,
        "See the newest file in the data folder's logs for details",
    )


def is_device_lost(error: Exception) -> bool:
    """Return whether this process can no longer use its devices, so that a new process must continue."""
    lost = ("UNAVAILABLE", "INTERNAL", "ABORTED", "DATA_LOSS", "DEADLINE_EXCEEDED")
    return is_runtime_error(error) and str(error).startswith(lost)


def is_runtime_error(error: Exception) -> bool:
    """Return whether jax's runtime raised this error for a reason other than lack of memory.

    With several hosts, such an error may mean that a host is lost.
    """
    return type(error).__name__ in ("XlaRuntimeError", "JaxRuntimeError") and "RESOURCE_EXHAUSTED" not in str(error)


def failure_outcome(error: Exception) -> str:
    """Return a text for `MultihostSync.gather` that is equal on all hosts if the same kind of error occurred on all hosts."""
    return f"{FAILED}{type(error).__name__}"
