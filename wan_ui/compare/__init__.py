"""The view that puts up to four settings side by side."""
