"""Checkpoints and LoRA files on this machine and on the Hub. Light: neither jax nor torch."""
