"""LTX-2.x: video and stereo audio in one pass."""
