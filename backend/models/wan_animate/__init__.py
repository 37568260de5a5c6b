"""Wan 2.2 Animate: the person of an image moves as the person of a clip moves."""
