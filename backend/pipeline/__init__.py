"""Generate one video with any model: load, compile ahead, run."""
