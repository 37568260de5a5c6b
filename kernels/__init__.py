"""Compute kernels in JAX. Does not depend on models, pipelines or files."""
