"""What a request appends to the video's tokens, of models that are shown pictures and clips in this way. Opens no file."""

import dataclasses
import math
from typing import Self

from backend.schemas.keyframes import appended_frames
from backend.schemas.settings import VideoSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Appended:
    """The tokens that follow the video's: those of a picture, each `picture` latents (H, W), at the pixel frames `frames`; then
    those of a control clip of `control` latents (F, H, W), None if there is none, each of which covers `downscale` x `downscale`
    of the video's."""

    frames: tuple[int, ...]
    picture: tuple[int, int]
    control: tuple[int, int, int] | None = None
    downscale: int = 1

    @classmethod
    def from_request(cls, request: VideoSettings) -> Self:
        """What the request appends, if its model appends what it is given."""
        geometry, downscale = request.geometry(), request.control_downscale
        height, width = geometry.latent_height, geometry.latent_width
        control = (geometry.num_latent_frames, height // downscale, width // downscale) if request.control else None
        return cls(frames=appended_frames(request), picture=(height, width), control=control, downscale=downscale)

    @property
    def num_picture_tokens(self) -> int:
        """Those of all pictures together."""
        return len(self.frames) * math.prod(self.picture)

    @property
    def num_control_tokens(self) -> int:
        return math.prod(self.control) if self.control else 0

    @property
    def num_tokens(self) -> int:
        return self.num_picture_tokens + self.num_control_tokens
