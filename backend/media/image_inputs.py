"""Writes single frames of videos, and the clip that a video was generated from. Runs in the sandbox, because videos can be
untrusted."""

from pathlib import Path

from backend.files import replace_file
from backend.media.source import original_frames
from backend.media.video import Size, extract_frame, read_facts, write_frames
from backend.schemas.request import GenerationRequest

# Larger frames are shrunk to fit this width and height. No model generates larger videos. Without the limit, a frame of 35
# million pixels, the maximum of `backend.media.video`, would need 100 MB more memory in each of two processes.
LARGEST = 4096, 4096


def write_frame(video: Path, index: int, path: Path) -> None:
    """Write a frame as an image that a request can use. A negative `index` counts from the end. It is shrunk
    to fit `LARGEST`. Raises: VideoFileError."""
    read_facts(video)  # raises a clear error for frames that are too large; the decoder's error would not name the reason
    extract_frame(video, index, LARGEST).save(path, compress_level=1)


def write_poster(video: Path, path: Path, within: Size) -> None:
    """Write the middle frame as a small image. Raises: VideoFileError."""
    facts = read_facts(video)
    frame = extract_frame(video, round(facts.seconds * facts.fps / 2), within)
    with replace_file(path) as part:
        frame.save(part, format="WEBP", quality=80)


def write_original(request: GenerationRequest, path: Path) -> None:
    """See `source.original_frames`. Raises: ClipError, VideoFileError."""
    write_frames(original_frames(request), path, fps=request.fps, comment="")
