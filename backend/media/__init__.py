"""Pictures and videos as files. Light: neither jax nor torch."""
