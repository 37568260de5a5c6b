"""The input of models with control blocks: one clip with a mask, combined from all control inputs. This module also restores the
clip's own pixels outside regenerated areas, because an autoencoder changes every pixel a little."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import numpy as np
from PIL import Image, ImageFilter

from backend.media.clips import read_clip
from backend.media.control import control_frame
from backend.media.video import Frame
from backend.schemas.clip import Part
from backend.schemas.request import GenerationRequest

GREY = 128  # the model's input has this value in pixels that the model generates, as in diffusers' documentation
FEATHER = (0.5, 0.75)  # weights of the generated video in the two outermost pixels of a mask. Further inside, the weight is 1
Opened = Mapping[str, Sequence[Image.Image | np.ndarray]]
"""Inputs by role: images, clips as uint8 [F, H, W, 3], masks as bool [F, H, W] where white is True."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """The input of the control blocks: `frames` uint8 [F, H, W, 3], and `is_new`, bool [F, H, W], True for pixels to generate."""

    frames: np.ndarray
    is_new: np.ndarray


def build_source(request: GenerationRequest, inputs: Opened) -> Source | None:
    """None if no clip, control clip or keyframe is given."""
    if not inputs.keys() & {"video", "control", "keyframes"}:
        return None
    size = (request.num_frames, request.height, request.width)
    frames, is_new = np.full((*size, 3), GREY, np.uint8), np.ones(size, bool)
    if inputs.get("control"):
        for index, frame in enumerate(_clip_frames(inputs, "control")):
            frames[index] = control_frame(frame, request.control_kind)
    if inputs.get("video"):
        clip, part = _clip_frames(inputs, "video"), Part.from_request(request)
        masks = _mask_frames(inputs)
        for index, frame in enumerate(clip):
            stays = ~masks[index]
            box = (part.first + index, *part.pixel_slices)
            frames[box][stays] = frame[stays]
            is_new[box] = ~stays
    for index, picture in zip(request.keyframe_at, inputs.get("keyframes", ()), strict=True):
        frames[index], is_new[index] = np.asarray(picture), False
    return Source(frames=frames, is_new=is_new)


def original_frames(request: GenerationRequest) -> Iterator[Frame]:
    """Yield the frames, uint8 [height, width, 3], that a video was generated from, for comparison. A clip's frames are placed as
    in the video, at the same times and in the same area, on grey. Without a clip, yields the frames of the control clip or
    driving clip. Raises: ClipError."""
    if request.video is None:
        role, path = ("control", request.control) if request.control else ("drive", request.drive)
        assert path is not None, "callers check `has_original`"
        yield from read_clip(path, dataclasses.replace(Part.from_request(request, role), size=(request.width, request.height)))
        return
    part = Part.from_request(request)
    clip = read_clip(request.video, part)
    for index in range(request.num_frames):
        frame = np.full((request.height, request.width, 3), GREY, np.uint8)
        own = next(clip, None) if index >= part.first else None
        if own is not None:
            frame[part.pixel_slices] = own
        yield frame


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeptPixels:
    """The pixels of a clip that stay unchanged in the video. `inputs` are the clip and its mask."""

    request: GenerationRequest
    inputs: Opened

    def put_back(self, pixels: np.ndarray, first: int) -> np.ndarray:
        """Return the frames `pixels`, uint8 [F, H, W, 3], which start with frame `first` of the video, with the clip's own pixels
        outside the mask. Near the mask's border, pixels are a mix of the video and the clip. Keyframes are not changed."""
        part, clip = Part.from_request(self.request), _clip_frames(self.inputs, "video")
        mixed = pixels.copy()
        for index, frame in enumerate(mixed):
            number = first + index - part.first
            if not 0 <= number < len(clip) or first + index in self.request.keyframe_at:
                continue
            own = clip[number]
            mask = _mask_frames(self.inputs)[number]
            share = mask.astype(np.float32)  # the weight of the generated video for each pixel
            if mask.any() and not mask.all():
                inner = Image.fromarray(mask.astype(np.uint8) * 255)
                for value in FEATHER:
                    smaller = inner.filter(ImageFilter.MinFilter(3))
                    share[(np.asarray(inner) > 0) & (np.asarray(smaller) == 0)] = value
                    inner = smaller
            share = share[..., None]
            box = frame[part.pixel_slices]
            box[...] = np.round(share * box + (1 - share) * own).astype(np.uint8)
        return mixed


def _mask_frames(inputs: Opened) -> np.ndarray:
    """Return the pixels to regenerate in each frame of the clip, bool [F, H, W]."""
    is_masked = bool(inputs.get("mask"))
    return _clip_frames(inputs, "mask") if is_masked else np.broadcast_to(False, _clip_frames(inputs, "video").shape[:3])


def _clip_frames(inputs: Opened, role: str) -> np.ndarray:
    return cast(np.ndarray, inputs[role][0])
