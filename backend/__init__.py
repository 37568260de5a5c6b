"""The engine that generates videos. Only modules of the worker process import jax or torch."""

import gc

# Importing torch, diffusers and transformers creates millions of permanent objects. With the default thresholds, Python's garbage
# collector scans these objects often, which takes a fifth of the import time (docs/lab/cpu.md).
gc.set_threshold(10_000, 10, 10)
