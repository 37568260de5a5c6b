"""Everything that makes a video. Only the modules that run inside the worker process import jax or torch."""

import gc

# Importing torch, diffusers and transformers makes millions of objects that stay, and Python would look through all of them again
# and again: a fifth of the imports' time (docs/lab/cpu.md).
gc.set_threshold(10_000, 10, 10)
