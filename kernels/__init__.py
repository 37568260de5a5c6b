"""Compute kernels in JAX. Knows nothing of models, pipelines or files."""
