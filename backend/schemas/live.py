"""File names of a live video's frames in its job's folder, shared by the process that writes the frames and the process that
shows them."""

FOLDER = "live"
KEPT_SECONDS = 10  # the job's folder has only the frames of the video's last 10 seconds; older frames are deleted


def frame_name(number: int) -> str:
    """Return the path of the image of pixel frame `number` (from 0), relative to the job's folder."""
    return f"{FOLDER}/{number:07d}.jpg"
