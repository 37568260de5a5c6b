"""The view of the machine."""
