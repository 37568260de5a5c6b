"""Tokens that a request appends to the video's tokens, for models that take images and clips in this way. This module opens no
file."""

import dataclasses
import math
from typing import Self

from backend.schemas.settings import VideoSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Appended:
    """The appended tokens: first the tokens of the images, then the tokens of the control clip. `frames` are the pixel frames at
    which the images are placed. `picture` is the size of each image in latents, (height, width), `control` the size of the
    control clip, (frames, height, width). Each of its latents covers `downscale` x `downscale` latents of the video."""

    frames: tuple[int, ...]
    picture: tuple[int, int]
    control: tuple[int, int, int] | None = None
    downscale: int = 1

    @classmethod
    def from_request(cls, request: VideoSettings) -> Self:
        """All keyframes except frame 0, in the order of `keyframes`, come before the last frame of `last_image`."""
        geometry, downscale = request.geometry(), request.control_downscale
        height, width = geometry.latent_height, geometry.latent_width
        frames = (*filter(None, request.keyframe_at), *([request.num_frames - 1] if request.last_image else ()))
        control = (geometry.num_latent_frames, height // downscale, width // downscale) if request.control else None
        return cls(frames=frames, picture=(height, width), control=control, downscale=downscale)

    @property
    def num_tokens(self) -> int:
        return len(self.frames) * math.prod(self.picture) + (math.prod(self.control) if self.control else 0)
