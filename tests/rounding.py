"""How far two float32 programs for the same sums may be apart: a bound from the arithmetic, not from one processor's result."""

import math

import numpy as np

UNIT = 2.0**-23  # the distance between float32 numbers from 1 to 2


def rounding(values: np.ndarray, *, steps: int, guidance: float, additions: int) -> float:
    """The most that rounding alone explains in such values.

    A sum's error grows with the root of its `additions`, the longest chain of them in a pass of the network; guidance takes
    `guidance` times one pass and `guidance - 1` times the other; each of the `steps` adds its own.
    Source: Higham, "Accuracy and Stability of Numerical Algorithms", 2.8 (rounding errors as independent random variables).
    """
    return UNIT * math.sqrt(additions) * (2 * guidance - 1) * steps * float(np.abs(values).max())
