"""The labels and messages of the page in each language."""
