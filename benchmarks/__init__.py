"""Benchmarks. Those that compute check their numerics first; each prints a table, and most write JSON. transformers does not see
torchvision here, as in the studio."""

import sys

from backend.imports import TORCHVISION

sys.modules.setdefault(TORCHVISION, None)
