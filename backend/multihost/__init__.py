"""Run one worker as one process on each of several hosts. Imports neither jax nor torch."""
