"""The values that cross processes: requests, events, shapes, the worker's state and facts. Light: neither jax nor torch."""
