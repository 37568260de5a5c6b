"""Wan 2.1 and 2.2, as diffusers lays them out."""
