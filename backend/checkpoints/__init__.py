"""Checkpoints and LoRA files on this machine and on the Hub. Imports neither jax nor torch."""
