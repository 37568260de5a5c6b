"""Checks of a request's texts. Texts must be plain and not too long."""

import unicodedata

from backend.errors import RequestError
from presets import Preset

MAX_CHARACTERS = 50_000  # longest text in a request from a link, video or browser; models read far less of it
# A prompt may have this many characters per token that the model reads. English has about four, so no real prompt is refused.
CHARACTERS_PER_TOKEN = 8


def has_surrogates(text: str) -> bool:
    """Return whether the text has halves of characters, which cannot be written as UTF-8."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def check_text(name: str, text: str, preset: Preset) -> None:
    """Check that a text is not too long for the preset's model and has no control characters. Raises: RequestError."""
    most = preset.max_prompt_tokens * CHARACTERS_PER_TOKEN
    if len(text) > most:
        fix = f"shorten it: the model reads {preset.max_prompt_tokens} tokens at most"
        raise RequestError(f"{name} has {len(text)} characters and", f"must have at most {most}", fix)
    for place, character in enumerate(text):
        if unicodedata.category(character) in ("Cc", "Cs") and character not in "\t\n\r":
            what = f"{name} has the control character U+{ord(character):04X} at position {place} and"
            raise RequestError(what, "must be plain text", "remove that character")
