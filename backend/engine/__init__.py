"""The queue, its store and its library. Imports neither jax nor torch."""
