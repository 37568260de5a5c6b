"""What models are on this machine, what could be, and how it is fetched. Imports neither jax nor torch."""
