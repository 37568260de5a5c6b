"""Open a request's inputs for the model, or create blank inputs of the same sizes to compile programs without files."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from backend.media.audio_inputs import CHANNELS, MODEL_RATE, read_for_model, read_sound_facts
from backend.media.clips import read_clip_facts, read_part
from backend.media.driving_video import BlankClip, DrivingClip
from backend.media.masks import read_mask
from backend.media.pictures import compress_image, crop_to, fit_on_white, load_checked_image
from backend.media.source import KeptPixels
from backend.models.model import Inputs
from backend.schemas.clip import Part
from backend.schemas.progressive import HALF, num_half_size_steps, request_at_first_size
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import INPUTS, Setting
from backend.schemas.sound import SoundPart, keeps_clip_audio

_PICTURES = tuple(setting.name for setting in INPUTS if setting.media == "picture")


def open_inputs(request: GenerationRequest, opened: KeptPixels | None = None, roles: Collection[str] | None = None) -> Inputs:
    """Open the request's inputs of these roles at the video's size, by role. Images are cropped, and compressed if the request
    asks for it. Reference images get white borders instead. Clips and audio files are cut to the requested part, and clips are
    converted to the video's frame rate. If the video extends a clip and the model reads audio, the clip's audio is an input too.
    The frames of a driving video are read later, in segments. Inputs in `opened` are not opened again."""

    def open_input(sized: GenerationRequest, setting: Setting, path: str) -> Image.Image | np.ndarray | DrivingClip:
        if setting.subject == "drive":
            return DrivingClip(path=path, part=Part.from_request(sized, setting.name))
        if setting.media == "either":
            return read_mask(path, Part.from_request(sized, setting.name))
        if setting.media == "sound":
            return read_for_model(path, SoundPart.from_request(sized))
        if setting.media == "video":
            return read_part(path, Part.from_request(sized, setting.name))
        size, picture = (sized.width, sized.height), load_checked_image(path)
        if setting.name == "references":
            return fit_on_white(picture, *size)
        return compress_image(crop_to(picture, *size, sized.image_focus), sized.image_crf)

    def read_clip_audio() -> tuple[np.ndarray, ...]:
        assert request.video is not None, "`keeps_clip_audio` checks this"
        facts = read_clip_facts(request.video)
        part = SoundPart.from_clip(request, facts.seconds)
        is_silent = not facts.has_sound or read_sound_facts(request.video).seconds <= part.start
        return () if is_silent else (read_for_model(request.video, part),)

    return _make_inputs(request, open_input, read_clip_audio, roles, opened.inputs if opened else {})


def blank_inputs(request: GenerationRequest) -> Inputs:
    """Create black or silent inputs in the size of the real inputs. Reads no file."""

    def create_blank(sized: GenerationRequest, setting: Setting, path: str) -> Image.Image | np.ndarray | BlankClip:
        if setting.subject == "drive":
            return BlankClip(size=Part.from_request(sized, setting.name).size)
        if setting.media == "picture":
            return Image.new("RGB", (sized.width, sized.height))
        if setting.media == "sound":
            return np.zeros((CHANNELS, round(SoundPart.from_request(sized).seconds * MODEL_RATE)), np.float32)
        part = Part.from_request(sized, setting.name)
        shape = (part.num_frames, *part.size[::-1])
        return np.zeros(shape, bool) if setting.media == "either" else np.zeros((*shape, 3), np.uint8)

    return _make_inputs(
        request,
        create_blank,
        lambda: (np.zeros((CHANNELS, round(SoundPart.from_clip(request, 0.0).seconds * MODEL_RATE)), np.float32),),
        None,
        {},
    )


def _make_inputs(
    request: GenerationRequest,
    make: Callable[[GenerationRequest, Setting, str], object],
    make_clip_audio: Callable[[], tuple[np.ndarray, ...]],
    roles: Collection[str] | None,
    known: Mapping[str, Sequence[object]],
) -> dict[str, Any]:
    """Make the request's inputs of these roles, except those in `known`. Without `roles`, also make the clip's audio, and, if the
    first steps run at half the size, the images at half the size, under roles with the prefix `HALF`."""
    paths = request.inputs()
    inputs: dict[str, Any] = {
        setting.name: known.get(setting.name) or tuple(make(request, setting, path) for path in paths[setting.name])
        for setting in INPUTS
        if setting.name in paths and (roles is None or setting.name in roles)
    }
    if roles is None and keeps_clip_audio(request):
        inputs["sound"] = make_clip_audio()
    if roles is None and num_half_size_steps(request):
        small = _make_inputs(request_at_first_size(request), make, make_clip_audio, _PICTURES, {})
        inputs |= {HALF + role: pictures for role, pictures in small.items()}
    return inputs
