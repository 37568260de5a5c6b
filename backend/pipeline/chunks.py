"""Divides a video's latents into chunks of frames, which are denoised one after another. A whole video may be one chunk."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from backend.contract.request import GenerationRequest
from backend.families.model import Model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunk:
    """Latent frames `first` up to, not including, `end`; `shape` is that of their latents, B C F H W."""

    index: int
    first: int
    end: int
    shape: tuple[int, ...]


def chunks_of(model: Model, request: GenerationRequest) -> Iterator[Chunk]:
    """The chunks in order; the last one may be shorter."""
    batch, channels, num_frames, height, width = model.latent_shape(request)
    size = model.kind.chunk or num_frames
    for index, first in enumerate(range(0, num_frames, size)):
        end = min(first + size, num_frames)
        yield Chunk(index=index, first=first, end=end, shape=(batch, channels, end - first, height, width))
