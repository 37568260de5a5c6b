"""The queue: videos that are running, waiting, or have just ended."""
