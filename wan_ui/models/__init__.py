"""The view of the models."""
