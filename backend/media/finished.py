"""Builds the request that upscales a file, from the file's facts and comment. Opens untrusted files."""

from pathlib import Path

from backend.errors import StudioError
from backend.media.clips import read_clip_facts
from backend.media.video import read_request
from backend.schemas.finished import describe_clip, upscale_clip_request, upscale_request
from backend.schemas.request import GenerationRequest


def upscale_file_request(path: str | Path, scale: int, upscaler: str = "", name: str = "") -> GenerationRequest:
    """Return the request that upscales the video at this absolute path, with the settings of the request that generated the
    video. If that request has input files, only its prompt is used, because the video does not contain these files. Without a
    request, or if the video was edited since, the prompt is `name`, by default the file's name. Raises: ClipError,
    RequestError."""
    path = Path(path)
    facts = read_clip_facts(path)
    try:
        made = read_request(path)
        same_size = made.final_size == (facts.width, facts.height) and abs(made.fps - facts.nominal_fps) < 0.01
        is_unedited = same_size and abs(made.total_frames / made.fps - facts.seconds) < 0.5 / made.fps + 0.02
    except StudioError:
        made, is_unedited = None, False
    if made is not None and is_unedited:
        if made.inputs():
            made = describe_clip(made.prompt, *made.final_size, made.total_frames, made.fps)
        return upscale_request(made, str(path), scale, upscaler)
    return upscale_clip_request(
        name or path.name, (facts.width, facts.height), facts.seconds, facts.nominal_fps, str(path), scale, upscaler
    )


def upscale_file_values(path: Path, scale: int, upscaler: str) -> dict[str, object]:
    """The sandbox cannot return a request."""
    return upscale_file_request(path, scale, upscaler).to_json()
