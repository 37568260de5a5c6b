"""Latents at another size, by their discrete cosine transform: the low frequencies stay, and the high ones are noise, or nothing.

Source: Xiao et al. 2026, arXiv:2605.18736, whose transform (orthonormal, type 2) is here a product with a matrix for each side.
"""

import functools
import math
from typing import Any

import numpy as np


def enlarged(latents: Any, noise: Any, *, sigma: float) -> Any:
    """Latents [..., H, W] from `latents` [..., h, w] at the noise level `sigma`, and `noise` [..., H, W], whose frequencies
    are taken where `latents` cannot have them. Their level is `solvers.rescale_sigma(sigma, growth)`, where `growth` is the root
    of H W / (h w). Float32."""
    small, full = latents.shape[-2:], noise.shape[-2:]
    growth = math.sqrt(math.prod(full) / math.prod(small))
    scale = np.float32(growth / (1 + (growth - 1) * sigma))
    lows = tuple(spread_matrix(side, least) for side, least in zip(full, small, strict=True))
    signal = _between(latents, *lows)
    high = noise - _between(_between(noise, *(low.T for low in lows)), *lows)
    return scale * (signal + np.float32(sigma) * high)


def at_size(latents: Any, rows: int, columns: int) -> Any:
    """Clean latents [..., h, w] as they would be at [..., rows, columns], with no frequencies above their own. Float32."""
    small = latents.shape[-2:]
    growth = np.float32(math.sqrt(rows * columns / math.prod(small)))
    return growth * _between(latents, spread_matrix(rows, small[0]), spread_matrix(columns, small[1]))


@functools.lru_cache(maxsize=32)
def spread_matrix(length: int, least: int) -> np.ndarray:
    """From `least` values to `length` values with the same lowest `least` frequencies and no others, [length, least] float32."""
    return (cosines(length)[:least].T @ cosines(least)).astype(np.float32)


def cosines(length: int) -> np.ndarray:
    """The orthonormal cosine transform of type 2, [frequencies, values] float64."""
    frequency, place = np.arange(length)[:, None], np.arange(length) + 0.5
    rows = math.sqrt(2 / length) * np.cos(math.pi / length * frequency * place)
    rows[0] /= math.sqrt(2)
    return rows


def _between(latents: Any, rows: np.ndarray, columns: np.ndarray) -> Any:
    return rows @ latents @ columns.T
