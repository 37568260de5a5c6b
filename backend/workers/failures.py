"""What a worker's failures mean: in words for people, whether its devices are lost, and what hosts agree on afterwards."""

from backend.errors import StudioError, is_memory_short, one_line
from backend.schemas.events import Failed
from backend.workers.multihost_sync import FAILED


def explain_error(error: Exception) -> Failed:
    """Turns an exception into one sentence on its cause and one on what to do."""
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
    """Whether the devices of this process can no longer be used, so that only a new process can go on."""
    lost = ("UNAVAILABLE", "INTERNAL", "ABORTED", "DATA_LOSS", "DEADLINE_EXCEEDED")
    return is_runtime_error(error) and str(error).startswith(lost)


def is_runtime_error(error: Exception) -> bool:
    """Whether jax's runtime raised this, and not for want of memory: on several hosts, what it says when another host is gone."""
    return type(error).__name__ in ("XlaRuntimeError", "JaxRuntimeError") and "RESOURCE_EXHAUSTED" not in str(error)


def failure_outcome(error: Exception) -> str:
    """What hosts gather for after this error: the same on all of them, if it is the same error."""
    return f"{FAILED}{type(error).__name__}"
