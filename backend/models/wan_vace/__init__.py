"""Wan VACE: Wan with control blocks, which are shown a clip, what of it is made anew, and pictures."""
