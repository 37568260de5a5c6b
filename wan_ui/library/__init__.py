"""The view of everything ever made."""
