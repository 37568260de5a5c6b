"""Open a request's inputs for the model, or create blank inputs of the same sizes to compile programs without files."""

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import numpy as np
from PIL import Image

from backend.media.audio_inputs import CHANNELS, MODEL_RATE, read_for_model, read_sound_facts
from backend.media.clips import read_clip_facts, read_part
from backend.media.driving_video import BlankClip, DrivingClip
from backend.media.masks import read_mask
from backend.media.pictures import compress_image, crop_to, fit_on_white, load_checked_image
from backend.media.source import KeptPixels, Opened
from backend.models.model import Inputs
from backend.schemas.clip import Part
from backend.schemas.progressive import HALF, num_half_size_steps, request_at_first_size
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import INPUTS, Setting
from backend.schemas.sound import SoundPart, keeps_clip_audio

_PICTURES = tuple(setting.name for setting in INPUTS if setting.media == "picture")


def open_inputs(request: GenerationRequest, opened: KeptPixels | None = None, roles: Collection[str] | None = None) -> Inputs:
    """Open the request's inputs at the video's size, by role. `roles` limits the result to these roles.

    Images are cropped, and compressed if the request asks for it. Reference images are not cropped, and get white borders. Clips
    and audio files are cut to the requested part. Clips are converted to the video's frame rate. If the video extends a clip and
    the model reads audio, the clip's audio is an input too. The frames of a driving video are read later, in segments. Inputs
    that are already in `opened` are not opened again.
    """
    size = (request.width, request.height)

    def open_input(setting: Setting, path: str) -> Image.Image | np.ndarray | DrivingClip:
        if setting.subject == "drive":
            return DrivingClip(path=path, part=Part.from_request(request, setting.name))
        if setting.media == "either":
            return read_mask(path, Part.from_request(request, setting.name))
        if setting.media == "sound":
            return read_for_model(path, SoundPart.from_request(request))
        if setting.media == "video":
            return read_part(path, Part.from_request(request, setting.name))
        picture = load_checked_image(path)
        if setting.name == "references":
            return fit_on_white(picture, *size)
        return compress_image(crop_to(picture, *size, request.image_focus), request.image_crf)

    known = opened.inputs if opened else {}
    inputs: dict[str, Any] = {
        setting.name: known.get(setting.name) or tuple(open_input(setting, path) for path in paths)
        for setting, paths in _select_inputs(request, roles)
    }
    if roles is None and keeps_clip_audio(request):
        inputs["sound"] = _read_clip_audio(request)
    return inputs | (_open_at_half_size(request, functools.partial(open_inputs, roles=_PICTURES)) if roles is None else {})


def open_kept_pixels(request: GenerationRequest) -> KeptPixels | None:
    """Open the pixels of the clip that must stay unchanged in the video. None if all pixels may change."""
    if not request.video or request.strength is not None or not request.keeps_pixels:
        return None
    # The type `Opened` has no DrivingClip. The roles "video" and "mask" never give a DrivingClip, so the cast is safe.
    return KeptPixels(request=request, inputs=cast(Opened, open_inputs(request, roles=("video", "mask"))))


def blank_inputs(request: GenerationRequest, roles: Collection[str] | None = None) -> Inputs:
    """Create a black or silent input for each input of the request, in the size of the real input. Reads no file. `roles` limits
    the result to these roles."""

    def create_blank(setting: Setting) -> Image.Image | np.ndarray | BlankClip:
        if setting.subject == "drive":
            return BlankClip(size=Part.from_request(request, setting.name).size)
        if setting.media == "picture":
            return Image.new("RGB", (request.width, request.height))
        if setting.media == "sound":
            return _create_silence(SoundPart.from_request(request))
        part = Part.from_request(request, setting.name)
        shape = (part.num_frames, *part.size[::-1])
        return np.zeros(shape, bool) if setting.media == "either" else np.zeros((*shape, 3), np.uint8)

    inputs: dict[str, Any] = {
        setting.name: tuple(create_blank(setting) for _ in paths) for setting, paths in _select_inputs(request, roles)
    }
    if roles is None and keeps_clip_audio(request):
        inputs["sound"] = (_create_silence(SoundPart.from_clip(request, 0.0)),)
    return inputs | (_open_at_half_size(request, functools.partial(blank_inputs, roles=_PICTURES)) if roles is None else {})


def _open_at_half_size(
    request: GenerationRequest, open_all: Callable[[GenerationRequest], Inputs]
) -> dict[str, Sequence[object]]:
    """Open the images again at half the size, under roles with the prefix `HALF`, if the first steps run at half the size."""
    if not num_half_size_steps(request):
        return {}
    return {HALF + role: pictures for role, pictures in open_all(request_at_first_size(request)).items()}


def _read_clip_audio(request: GenerationRequest) -> tuple[np.ndarray, ...]:
    """Read the audio of the part of the clip that the video extends. Return () if this part has no audio."""
    assert request.video is not None, "`keeps_clip_audio` checks this"
    facts = read_clip_facts(request.video)
    part = SoundPart.from_clip(request, facts.seconds)
    if not facts.has_sound or read_sound_facts(request.video).seconds <= part.start:
        return ()
    return (read_for_model(request.video, part),)


def _create_silence(part: SoundPart) -> np.ndarray:
    return np.zeros((CHANNELS, round(part.seconds * MODEL_RATE)), np.float32)


def _select_inputs(request: GenerationRequest, roles: Collection[str] | None = None) -> list[tuple[Setting, tuple[str, ...]]]:
    paths = request.inputs()
    return [
        (setting, paths[setting.name]) for setting in INPUTS if setting.name in paths and (roles is None or setting.name in roles)
    ]
