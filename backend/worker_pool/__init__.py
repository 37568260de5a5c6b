"""Several workers side by side, each kept alive by its supervisor. Imports neither jax nor torch."""
