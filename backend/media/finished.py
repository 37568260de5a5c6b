"""Builds the request that upscales a file, from the file's facts and comment. Opens untrusted files."""

from pathlib import Path

from backend.errors import StudioError
from backend.media.clips import ClipFacts, read_clip_facts
from backend.media.video import read_request
from backend.schemas.finished import describe_clip, upscale_clip_request, upscale_request
from backend.schemas.request import GenerationRequest


def upscale_file_request(path: str | Path, scale: int, upscaler: str = "", name: str = "") -> GenerationRequest:
    """Return the request that upscales the video at this absolute path.

    If this studio generated the video, the result has the settings of the video's request. If that request has input files, only
    its prompt is used, because the video does not contain these files. A clip of another program has no stored request, and an
    edited video does not fit its stored request. For such files the prompt is `name`, or the file's name if `name` is empty.

    Raises: ClipError, RequestError.
    """
    path = Path(path)
    facts = read_clip_facts(path)
    made = _read_matching_request(path, facts)
    if made is not None and made.inputs():
        made = describe_clip(made.prompt, *made.final_size, made.total_frames, made.fps)
    if made is not None:
        return upscale_request(made, str(path), scale, upscaler)
    return upscale_clip_request(
        name or path.name, (facts.width, facts.height), facts.seconds, facts.nominal_fps, str(path), scale, upscaler
    )


def upscale_file_values(path: Path, scale: int, upscaler: str) -> dict[str, object]:
    """Return `upscale_file_request` as plain values, because the sandbox cannot return a request."""
    return upscale_file_request(path, scale, upscaler).to_json()


def _read_matching_request(path: Path, facts: ClipFacts) -> GenerationRequest | None:
    """Return the request that generated this file. None if the file contains no request, or if the file's size, rate or length do
    not fit the request, because the video was edited."""
    try:
        made = read_request(path)
        same_size = made.final_size == (facts.width, facts.height) and abs(made.fps - facts.nominal_fps) < 0.01
        return made if same_size and abs(made.total_frames / made.fps - facts.seconds) < 0.5 / made.fps + 0.02 else None
    except StudioError:
        return None
