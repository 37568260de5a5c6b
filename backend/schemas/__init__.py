"""The values that cross processes: requests, events, shapes, the worker's state and facts. Imports neither jax nor torch."""
