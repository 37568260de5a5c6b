"""Bounds of the difference between two float32 programs for the same sums, derived from the arithmetic, not measured."""

import math

import numpy as np

ROUNDOFF = 2.0**-24  # the largest relative error of one float32 operation


def rounding(values: np.ndarray, *, guidance: float, additions: int) -> float:
    """Return the largest difference that rounding alone explains between latents of two programs.

    The error of a sum grows with the square root of `additions`, the longest chain of additions in a pass of the network.
    Guidance adds `guidance` times one pass and `guidance - 1` times the other. The steps' weights of the network's outputs add
    up to 1 on the whole way from noise to the video. Both programs have this error.

    Source: Higham, "Accuracy and Stability of Numerical Algorithms", 2.8 (rounding errors as independent random variables).
    """
    return math.sqrt(2) * ROUNDOFF * math.sqrt(additions) * (2 * guidance - 1) * float(np.abs(values).max())
