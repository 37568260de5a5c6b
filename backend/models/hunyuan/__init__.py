"""HunyuanVideo 1.5 in diffusers' format."""
