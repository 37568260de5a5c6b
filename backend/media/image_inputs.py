"""Writes single pictures of videos, and what a video was made from: work for the sandbox, since the videos may be strangers'."""

from pathlib import Path

from backend.files import replacing
from backend.media.source import original_frames
from backend.media.video import Size, extract_frame, read_facts, write_frames
from backend.schemas.request import GenerationRequest


def write_frame(video: Path, index: int, path: Path) -> None:
    """Writes a frame as a picture; counted from the end if `index` is negative. Raises: VideoFileError."""
    read_facts(video)  # explains that frames are too large; decoding would only fail
    extract_frame(video, index).save(path, compress_level=1)


def write_poster(video: Path, path: Path, within: Size) -> None:
    """Writes the middle frame as a small picture. Raises: VideoFileError."""
    facts = read_facts(video)
    frame = extract_frame(video, round(facts.seconds * facts.fps / 2), within)
    with replacing(path) as part:
        frame.save(part, format="WEBP", quality=80)


def write_original(request: GenerationRequest, path: Path) -> None:
    """Writes what a video was made from, as long and as large as it is (see `source.original`).

    Raises: ClipError, VideoFileError.
    """
    write_frames(original_frames(request), path, fps=request.fps, comment="")
