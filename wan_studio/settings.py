"""The arguments of `Studio.submit` and `Studio.generate`, and their names in the server's API."""

import base64
import io
import json
import numbers
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypedDict

from wan_studio.errors import StudioError


class Picture(Protocol):
    """An image that can be saved, such as an image of PIL."""

    def save(self, file: io.BytesIO, format: str, /) -> object:
        """Write the image to the file in this format."""


File = str | os.PathLike[str] | bytes
"""A file: its path on this machine or its bytes."""


class Settings(TypedDict, total=False):
    """Settings of a video by diffusers' argument names, with `preset` and `seed`. Missing settings have the preset's values.

    `preset` is a name of `Studio.models()`. `image` is the first frame, `last_image` the last frame. `video` is a clip to
    restyle by `strength`, and `mask` an image or a clip of its area to change. `control` is a clip whose motion is
    transferred. `drive` and `face` are the driving video and the face of Animate. `sound` is an audio file, `track` the
    soundtrack of a storyboard. `reference_images` show what appears in the video. `keyframes` are images by frame, `figures`
    images of characters by name. `guidance_scale_2` is the guidance of the second expert. `frame_rate` is in frames per
    second. `settings` has all other settings by their names in docs/reference.md, such as `{"solver": "euler"}`.
    """

    preset: str
    negative_prompt: str
    image: File | Picture
    last_image: File | Picture
    video: File
    mask: File | Picture
    control: File
    drive: File
    face: File
    sound: File
    track: File
    reference_images: Sequence[File | Picture]
    keyframes: Mapping[int, File | Picture]
    figures: Mapping[str, File | Picture]
    strength: float
    width: int
    height: int
    num_frames: int
    frame_rate: int
    num_inference_steps: int
    guidance_scale: float
    guidance_scale_2: float
    seed: int
    settings: Mapping[str, Any]


_NAMES = {"preset": "model", "image": "input_reference", "frame_rate": "fps", "num_inference_steps": "steps"}
_FILES = ("image", "last_image", "video", "mask", "control", "drive", "face", "sound", "track")
_GUIDANCE = ("guidance_scale", "guidance_scale_2")
_INSTEAD = {"generator": "use seed", "output_type": "use video.frames", "callback_on_step_end": "use on_event of generate"}
"""Arguments of diffusers that a server cannot take, with their replacements."""


def to_fields(prompt: str, given: Settings) -> dict[str, object]:
    """Return the fields of the request to `/v1/videos`. Settings with the value None are left out.

    Raises: OSError for a file that cannot be read, StudioError for a setting that cannot be sent.
    """
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if other := next((name for name in _INSTEAD if name in values), None):
        raise StudioError(f"{other} is not a setting of the studio: {_INSTEAD[other]}")
    fields: dict[str, object] = {"prompt": prompt, **values.pop("settings", {})}
    if guidance := [values.pop(name) for name in _GUIDANCE if name in values]:
        fields["guidance"] = guidance
    if len(references := values.pop("reference_images", ())):
        fields["references"] = [to_data_url("reference_images", image) for image in references]
    for name, key in (("keyframes", "frame"), ("figures", "name")):
        images = values.pop(name, {})
        if not isinstance(images, Mapping):
            raise StudioError(f"{name} is a {type(images).__name__}, but must be a dictionary of images by {key}")
        if images:
            fields[name] = [{key: label, "image_url": to_data_url(name, image)} for label, image in images.items()]
    sent = {name: to_data_url(name, value) if name in _FILES else value for name, value in values.items()}
    return fields | {_NAMES.get(name, name): value for name, value in sent.items()}


def to_json(fields: Mapping[str, object]) -> bytes:
    """Encode the fields of a request. Numbers of numpy are sent as numbers. Raises: StudioError for other objects."""
    return json.dumps(fields, default=_to_number).encode()


def _to_number(value: object) -> int | float:
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    allowed = "settings are texts, numbers, lists and dictionaries"
    raise StudioError(f"A setting has a value of the type {type(value).__name__}, but {allowed}: convert it")


def to_data_url(name: str, file: File | Picture) -> str:
    """Return the content of the file that the setting `name` has. Raises: OSError, StudioError for another type."""
    if isinstance(file, bytes):
        content = file
    elif isinstance(file, (str, os.PathLike)):
        content = Path(file).expanduser().read_bytes()
    elif hasattr(file, "save"):
        buffer = io.BytesIO()
        file.save(buffer, "PNG")
        content = buffer.getvalue()
    else:
        fix = "save frames as a file, or use PIL.Image.fromarray(array) for an image"
        raise StudioError(f"{name} is a {type(file).__name__}, but must be a file's path, its bytes or an image of PIL: {fix}")
    return f"data:application/octet-stream;base64,{base64.b64encode(content).decode()}"
