"""One worker that is a process on each of several hosts. Imports neither jax nor torch."""
