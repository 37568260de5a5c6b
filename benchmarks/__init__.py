"""Benchmarks. Those that compute check their numerics first; each prints a table, and most write JSON. transformers does not see
torchvision here, as in the studio."""

from backend.imports import TORCHVISION, hide

hide(TORCHVISION)
