"""The values that processes exchange: requests, events, shapes, the worker's state and facts. Imports neither jax nor torch."""
