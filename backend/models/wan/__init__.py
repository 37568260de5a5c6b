"""The Wan 2.1 and 2.2 models. Their checkpoints have the layout of diffusers' checkpoints."""
