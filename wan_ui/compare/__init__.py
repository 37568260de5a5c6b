"""The view that compares up to four videos side by side."""
