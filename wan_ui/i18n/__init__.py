"""The studio's words in each language."""
