"""Wan 2.2 Animate: the person in an image moves as the person in a clip moves."""
