"""Checks of a request's audio settings, and the part of an audio input that a video uses. This module opens no file."""

import dataclasses
import math
from typing import Self

from backend.errors import RequestError
from backend.schemas.clip import Part, check_trim
from backend.schemas.settings import VideoSettings
from presets import Preset


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoundPart:
    """A part of an audio file, in seconds."""

    start: float
    seconds: float

    @classmethod
    def from_request(cls, request: VideoSettings) -> Self:
        """The part is as long as the video."""
        return cls(start=request.sound_start, seconds=request.num_frames / request.fps)

    @classmethod
    def from_clip(cls, request: VideoSettings, seconds: float) -> Self:
        """Return the part of a clip's audio that plays during the overlap. `seconds` is the length of the whole clip."""
        part = Part.from_request(request).resolve_start(seconds)
        return cls(start=part.trim[0], seconds=part.seconds)


def keeps_clip_audio(request: VideoSettings) -> bool:
    """Return whether the generated audio continues the audio of an extended clip. Also True for a silent clip, which is not
    opened."""
    is_made = request.extend == "after" and request.resolved_preset.makes_sound
    return is_made and request.keeps_sound and request.sound is None


def check_sound(request: VideoSettings, preset: Preset) -> None:
    if request.sound_start and request.sound is None:
        raise RequestError("sound_start was given", "but needs sound", "give sound too, or leave this out")
    if not (math.isfinite(request.sound_start) and request.sound_start >= 0):
        rule = "must be a time of the audio in seconds, 0 or more"
        raise RequestError(f"sound_start={request.sound_start:g}", rule, "0 is usual")
    if request.make != "sound":
        return
    if request.video is None:
        raise RequestError("video is missing:", "make=sound generates audio for it", "give the clip as video")
    for name in ("image", "keyframes", "control", "sound", "strength", "extend"):
        if getattr(request, name) not in (None, ()):
            raise RequestError(f"{name} was given", "but make=sound only generates audio for video", "leave it out")
    check_trim(request, preset)
