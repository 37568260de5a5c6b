"""Images, videos and audio as files. Imports neither jax nor torch."""
