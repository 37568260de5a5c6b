"""What a request says of sound: which settings a model without one refuses, and the part of a given sound that a video takes.
Opens no file."""

import dataclasses
import math
from typing import Self

from backend.errors import RequestError
from backend.schemas.clip import Part, check_trim
from backend.schemas.settings import VideoSettings, find_preset
from presets import Preset

ONLY_WITH_SOUND = ("sound_guidance", "perturbed_guidance", "modality_guidance", "guidance_rescale", "make")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoundPart:
    """So many `seconds` of a sound, from its moment `start` (seconds) on."""

    start: float
    seconds: float

    @classmethod
    def from_request(cls, request: VideoSettings) -> Self:
        """What the request wants of its sound: as long as the video."""
        return cls(start=request.sound_start, seconds=request.num_frames / request.fps)

    @classmethod
    def from_clip(cls, request: VideoSettings, seconds: float) -> Self:
        """What is heard of a clip of so many seconds, after which the video goes on: as long as the frames that it takes over."""
        part = Part.from_request(request).resolve_start(seconds)
        return cls(start=part.trim[0], seconds=part.seconds)


def keeps_clip_audio(request: VideoSettings) -> bool:
    """Whether a video that goes on after a clip begins with that clip's sound too, if the clip has one."""
    is_made = request.extend == "after" and find_preset(request.preset).makes_sound
    return is_made and request.keeps_sound and request.sound is None


def check_sound(request: VideoSettings, preset: Preset) -> None:
    """Raises: RequestError for what the preset's model cannot do with sound, or for settings that do not go together."""
    for name in ONLY_WITH_SOUND if not preset.makes_sound else ():
        if getattr(request, name) != getattr(preset, name, "video"):
            raise RequestError(f"{name} was given", f"and {preset.name} makes no sound", "leave it out")
    if request.sound_start and request.sound is None:
        raise RequestError("sound_start was given", "but no sound, to which it belongs", "give it as sound, or leave this out")
    if not (math.isfinite(request.sound_start) and request.sound_start >= 0):
        raise RequestError(f"sound_start={request.sound_start:g}", "must be a moment of the sound, in seconds", "0 is usual")
    if request.make == "sound":
        _check_audio_for_clip(request, preset)


def _check_audio_for_clip(request: VideoSettings, preset: Preset) -> None:
    """Of a sound that is made for a clip."""
    if request.video is None:
        raise RequestError("video is missing:", "a sound is made for its pictures", "give the clip as video")
    others = {name: getattr(request, name) for name in ("image", "keyframes", "control", "sound", "strength", "extend")}
    for name, value in others.items():
        if value not in (None, ()):
            raise RequestError(f"{name} was given", "but only a sound is made, for the pictures of video", "leave it out")
    if not request.keeps_sound:
        raise RequestError("a sound is made and", "must be kept", "leave out that the video has none")
    check_trim(request, preset)
