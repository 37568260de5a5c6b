"""Everything that makes a video. Only the modules that run inside the worker process import jax or torch."""
