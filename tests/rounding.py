"""Bounds of the difference between two float32 programs for the same sums, derived from the arithmetic, not measured."""

import math

import numpy as np

ROUNDOFF = 2.0**-24  # the largest relative error of one float32 operation


def rounding(values: np.ndarray, *, guidance: float, additions: int) -> float:
    """The most that rounding alone explains between such latents, made twice.

    A sum's error grows with the root of its `additions`, the longest chain of them in a pass of the network. Guidance takes
    `guidance` times one pass and `guidance - 1` times another. The steps' weights on what the passes say add up to 1, the whole
    way from noise to the video. Both programs have this error.
    Source: Higham, "Accuracy and Stability of Numerical Algorithms", 2.8 (rounding errors as independent random variables).
    """
    return math.sqrt(2) * ROUNDOFF * math.sqrt(additions) * (2 * guidance - 1) * float(np.abs(values).max())
