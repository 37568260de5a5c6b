"""The view of all videos that were made."""
