"""Causal Wan: Wan's networks, trained to generate a video block by block."""
