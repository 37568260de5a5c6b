"""Suggest requests that need less memory than a request that does not fit: fewer frames, or a smaller size.

The estimates assume that all memory except the weights grows with the number of tokens. This module compiles nothing itself.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from backend.errors import RequestError
from backend.schemas.geometry import latent_frames, pixel_frames
from backend.schemas.request import GenerationRequest
from presets import list_presets

# Maximum number of compiled candidates: this many with fewer frames, and this many of a smaller size.
MAX_COMPILED_CANDIDATES = 2
Candidate = TypeVar("Candidate")
CAUTION = 0.95  # factor on the estimated number of tokens, because some of a program's memory does not shrink with the tokens


def find_first_fitting(
    candidates: Iterable[Candidate], bytes_if_fitting: Callable[[Candidate], int | None]
) -> tuple[Candidate, int] | None:
    """Return the first candidate that fits, with its bytes on each device. None if no compiled candidate fits.

    `bytes_if_fitting` compiles a candidate and returns its bytes, None if it does not fit. This function is called for at most
    `MAX_COMPILED_CANDIDATES` candidates.
    """
    for candidate in islice(candidates, MAX_COMPILED_CANDIDATES):
        if (size := bytes_if_fitting(candidate)) is not None:
            return candidate, size
    return None


def fitting_share_of_tokens(*, weights: int, needed: int, capacity: int) -> float:
    """Return the share of the request's tokens that fits into `capacity` bytes of each device.

    `needed` are all bytes that the request needs on each device, including `weights`. The share is below 0 if the weights alone
    do not fit.
    """
    return CAUTION * (capacity - weights) / (needed - weights)


def fewer_frames(request: GenerationRequest, share: float) -> Iterator[GenerationRequest]:
    """Yield the request with fewer and fewer frames. The first result has at most the fraction `share` of the request's
    tokens."""
    scale = request.resolved_preset.vae_scale_temporal
    while (count := int(latent_frames(request.num_frames, scale) * share)) > 1:
        changed = _with_settings(request, num_frames=pixel_frames(count, scale))
        if changed is None:
            return
        yield changed
        share *= CAUTION**3


def smaller_sizes(request: GenerationRequest, share: float) -> Iterator[GenerationRequest]:
    """Yield the request at sizes that have at most the fraction `share` of its pixels, the largest size first.

    The sizes are the sizes of all presets in the series of the request's preset, in the same orientation.
    """
    largest, series = share * request.width * request.height, request.resolved_preset.series
    sizes = {size for preset in list_presets() if preset.series == series for size in preset.sizes}
    for width, height in sorted(sizes, key=lambda size: -size[0] * size[1]):
        changed = _with_settings(request, width=width, height=height)
        if width * height <= largest and (width > height) == (request.width > request.height) and changed is not None:
            yield changed


def _with_settings(request: GenerationRequest, **changes: int) -> GenerationRequest | None:
    """Return the request with these settings, None if its preset does not allow them."""
    try:
        values: dict[str, Any] = request.model_dump() | changes
        return GenerationRequest(**values)
    except RequestError:
        return None
