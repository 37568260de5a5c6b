"""The models on this machine, the models that can be downloaded, and their downloads. Imports neither jax nor torch."""
