"""LTX-2.x: pictures and stereo sound in one pass."""
