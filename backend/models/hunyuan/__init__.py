"""HunyuanVideo 1.5, in diffusers' layout."""
