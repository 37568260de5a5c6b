"""The view of videos that are steered while they are made."""
