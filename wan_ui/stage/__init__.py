"""The view of the video that is being made."""
