"""Causal Wan: Wan's networks, which make a video a block of frames at a time."""
