"""Divide a video's latents into chunks of frames, which are denoised one after another. A whole video may be one chunk."""

import dataclasses
from collections.abc import Iterator

from backend.models.model import VIDEO, Model
from backend.schemas.request import GenerationRequest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunk:
    """One chunk. `shapes` maps each stream ("video", "sound") to the shape of the chunk's latents."""

    index: int
    shapes: dict[str, tuple[int, ...]]


def divide_into_chunks(model: Model, request: GenerationRequest) -> Iterator[Chunk]:
    """Yield the chunks in order. The last chunk may be shorter. All streams, such as video and audio, are divided at the same
    times."""
    shapes = model.latent_shapes(request)
    num_frames = shapes[VIDEO][2]
    size = model.spec.chunk or num_frames
    for index, first in enumerate(range(0, num_frames, size)):
        ends = first, min(first + size, num_frames)
        yield Chunk(index=index, shapes={name: _shape_between(shape, *ends, num_frames) for name, shape in shapes.items()})


def _shape_between(shape: tuple[int, ...], first: int, end: int, num_frames: int) -> tuple[int, ...]:
    """Return the shape of a stream's latents in one chunk.

    `shape` is the shape of the stream's latents in the whole video. The chunk starts with the video's latent frame `first` and
    ends before frame `end`. The whole video has `num_frames` latent frames.
    """
    length = shape[2] * end // num_frames - shape[2] * first // num_frames
    return (*shape[:2], length, *shape[3:])
