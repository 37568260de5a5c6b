"""Resize latents by their discrete cosine transform (orthonormal, type 2), with one matrix along the height and one along the
width. Source: Xiao et al. 2026, arXiv:2605.18736.
"""

import functools
import math
from typing import Any, TypeVar

import jax
import numpy as np

LatentArray = TypeVar("LatentArray", np.ndarray, jax.Array)


def enlarge_noisy_latents(latents: LatentArray, noise: LatentArray, *, sigma: float) -> LatentArray:
    """Enlarge latents [..., h, w] at noise level `sigma` to [..., H, W], float32. The high frequencies are taken from `noise`
    [..., H, W].

    The result's noise level is `step_plan.rescale_sigma(sigma, growth)` with growth = sqrt(H W / (h w)).
    """
    small, full = latents.shape[-2:], noise.shape[-2:]
    growth = math.sqrt(math.prod(full) / math.prod(small))
    scale = np.float32(growth / (1 + (growth - 1) * sigma))
    lows = tuple(upsampling_matrix(side, least) for side, least in zip(full, small, strict=True))
    signal = _apply_to_sides(latents, *lows)
    high = noise - _apply_to_sides(_apply_to_sides(noise, *(low.T for low in lows)), *lows)
    return scale * (signal + np.float32(sigma) * high)


def resize_latents(latents: LatentArray, rows: int, columns: int) -> LatentArray:
    """Resize clean latents [..., h, w] to [..., rows, columns], float32. Frequencies that the input does not have are zero."""
    small = latents.shape[-2:]
    growth = np.float32(math.sqrt(rows * columns / math.prod(small)))
    return growth * _apply_to_sides(latents, upsampling_matrix(rows, small[0]), upsampling_matrix(columns, small[1]))


@functools.lru_cache(maxsize=32)
def upsampling_matrix(length: int, least: int) -> np.ndarray:
    """Return the matrix [length, least] float32 that keeps the lowest `least` frequencies. All higher frequencies are zero."""
    return (cosine_transform(length)[:least].T @ cosine_transform(least)).astype(np.float32)


def cosine_transform(length: int) -> np.ndarray:
    """Return the matrix of the orthonormal cosine transform of type 2, [frequencies, values] float64."""
    frequency, place = np.arange(length)[:, None], np.arange(length) + 0.5
    rows = math.sqrt(2 / length) * np.cos(math.pi / length * frequency * place)
    rows[0] /= math.sqrt(2)
    return rows


def _apply_to_sides(latents: LatentArray, rows: np.ndarray, columns: np.ndarray) -> Any:
    return rows @ latents @ columns.T
