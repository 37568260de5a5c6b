"""The view in which clips are edited."""
