"""A setting's value in words."""

from typing import Any

NO_PICTURE = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="  # one transparent pixel


def value_words(value: Any) -> str:
    """A plain value on one line."""
    if isinstance(value, list):
        return ", ".join(value_words(part) for part in value)
    if isinstance(value, dict):
        return " ".join(value_words(part) for part in value.values())
    return f"{value:g}" if isinstance(value, float) else str(value)
