"""The view in which videos are made."""
