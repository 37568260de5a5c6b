"""The queue: the videos that are made now, that wait, and that have just ended."""
