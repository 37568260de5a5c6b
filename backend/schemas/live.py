"""Where a live video's frames lie in its job's folder while it is made, for the process that makes them and the one that shows
them."""

FOLDER = "live"
KEPT_SECONDS = 10  # of frames; older ones are removed


def frame_name(number: int) -> str:
    """The name in the job's folder of the picture of pixel frame `number`, counted from 0."""
    return f"{FOLDER}/{number:07d}.jpg"
