"""Wan VACE: Wan with control blocks, which read a clip, a mask of the area to regenerate, and reference images."""
