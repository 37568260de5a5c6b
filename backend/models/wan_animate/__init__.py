"""Wan 2.2 Animate: a figure in a picture that moves as the one in a clip does."""
