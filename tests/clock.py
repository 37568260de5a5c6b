"""Bounds on measured seconds.

Only `bash tests/run --bench` checks them, because nothing else runs then. Other runs print them.
"""

import os
import sys

BENCH = "STUDIO_TEST_BENCH"


def is_within(measured: float, bound: float, unit: str = "s") -> bool:
    """Return whether the measured value is below its bound. Always true unless `BENCH` is set. Prints both values."""
    sys.stderr.write(f"measured {measured:.3f} {unit}, bound {bound:g} {unit}\n")
    return measured < bound or not os.environ.get(BENCH)
