"""Requests that need less memory than one that does not fit: fewer frames, or a smaller size. Estimates; compiles nothing.

Weights stay, and everything else shrinks with the video's tokens.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from backend.errors import RequestError
from backend.schemas.geometry import latent_frames, pixel_frames
from backend.schemas.request import GenerationRequest, find_preset
from presets import list_presets

TRIES = 2  # compilations for each kind of remedy
Candidate = TypeVar("Candidate")
CAUTION = 0.95  # of the estimated tokens: some of a program's memory does not shrink with them


def first_fitting(
    candidates: Iterable[Candidate], bytes_if_fitting: Callable[[Candidate], int | None]
) -> tuple[Candidate, int] | None:
    """The first of the candidates, of `TRIES`, that fits, and its bytes on each device; None if none does."""
    for candidate in islice(candidates, TRIES):
        if (size := bytes_if_fitting(candidate)) is not None:
            return candidate, size
    return None


def share_of_tokens(*, weights: int, needed: int, capacity: int) -> float:
    """The share of the tokens that there is room for, where `needed` bytes on each device, `weights` among them, are more than
    its `capacity`. Below 0 where the weights alone do not fit."""
    return CAUTION * (capacity - weights) / (needed - weights)


def fewer_frames(request: GenerationRequest, share: float) -> Iterator[GenerationRequest]:
    """The request with fewer frames, the most of them first."""
    scale = find_preset(request.preset).vae_scale_temporal
    while (count := int(latent_frames(request.num_frames, scale) * share)) > 1:
        changed = _changed(request, num_frames=pixel_frames(count, scale))
        if changed is None:
            return
        yield changed
        share *= CAUTION**3


def smaller_sizes(request: GenerationRequest, share: float) -> Iterator[GenerationRequest]:
    """The request at the smaller sizes of its preset's series, as upright or as wide, the largest first."""
    largest, series = share * request.width * request.height, find_preset(request.preset).series
    sizes = {size for preset in list_presets() if preset.series == series for size in preset.sizes}
    for width, height in sorted(sizes, key=lambda size: -size[0] * size[1]):
        changed = _changed(request, width=width, height=height)
        if width * height <= largest and (width > height) == (request.width > request.height) and changed is not None:
            yield changed


def _changed(request: GenerationRequest, **changes: int) -> GenerationRequest | None:
    """The request with these settings, or None if its preset does not allow them."""
    try:
        values: dict[str, Any] = request.model_dump() | changes
        return GenerationRequest(**values)
    except RequestError:
        return None
