"""Workers on the machines of a Ray cluster. Imports Ray late, and neither jax nor torch."""
