"""Run one worker as several processes, one on each host. Imports neither jax nor torch."""
