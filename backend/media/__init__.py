"""Pictures and videos as files. Imports neither jax nor torch."""
