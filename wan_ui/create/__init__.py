"""The view in which videos are generated."""
