"""Benchmarks. Benchmarks of computations check their numerics first. Each benchmark prints a table, and most write JSON.

As in the studio, torchvision is hidden from transformers.
"""

from backend.imports import TORCHVISION, hide_library

hide_library(TORCHVISION)
