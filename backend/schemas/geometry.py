"""Arithmetic from pixels to latents to tokens, with integers only: no arrays, models or presets."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The shape of one video in pixels, latents and tokens. The first latent frame holds one pixel frame, each later one
    `temporal_scale`. A token is a patch of `patch` x `patch` latents."""

    width: int
    height: int
    num_frames: int
    spatial_scale: int
    temporal_scale: int = 4
    patch: int = 2

    @property
    def num_latent_frames(self) -> int:
        return latent_frames(self.num_frames, self.temporal_scale)

    @property
    def latent_height(self) -> int:
        return self.height // self.spatial_scale

    @property
    def latent_width(self) -> int:
        return self.width // self.spatial_scale

    @property
    def num_tokens(self) -> int:
        return self.num_latent_frames * (self.latent_height // self.patch) * (self.latent_width // self.patch)

    def latent_shape(self, channels: int, batch: int = 1) -> tuple[int, int, int, int, int]:
        """Return the shape [B, C, F, H, W] of the latents."""
        return (batch, channels, self.num_latent_frames, self.latent_height, self.latent_width)


def is_frame_count(num_frames: int, step: int = 4, first: int = 1) -> bool:
    """`first` plus a multiple of `step`."""
    return num_frames >= first and (num_frames - first) % step == 0


def latent_frames(num_frames: int, temporal_scale: int = 4) -> int:
    return (num_frames - 1) // temporal_scale + 1


def pixel_frames(num_latent_frames: int, temporal_scale: int = 4) -> int:
    return (num_latent_frames - 1) * temporal_scale + 1


def nearest_values(value: int, step: int, smallest: int, largest: int, offset: int = 0) -> list[int]:
    """Return the one or two allowed values next to `value`, smaller first: `offset` plus multiples of `step`, within limits."""
    lowest = smallest + (offset - smallest) % step
    highest = largest - (largest - offset) % step
    below = value - (value - offset) % step
    above = below if below == value else below + step
    return sorted({min(max(candidate, lowest), highest) for candidate in (below, above)})
