"""Translate what workers report.

Workers report English texts. `Texts.details` of each language lists every text and its translation, with placeholders for values.
Other texts stay English.
"""

import functools
import re

from presets import list_presets
from wan_ui.i18n.english import Texts


def translate_detail(text: str, texts: Texts) -> str:
    """Translate a worker's text, and the program and network names in it."""
    known = dict(texts.details)
    if text in known:
        return known[text]
    for pattern, words in texts.details:
        if "{" in pattern and (match := _compile_pattern(pattern).fullmatch(text)):
            return words.format(**{name: translate_detail(value, texts) for name, value in match.groupdict().items()})
    return _preset_titles(texts.language).get(text, text)


@functools.cache
def _compile_pattern(text: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", text)
    return re.compile("".join(f"(?P<{part}>.+?)" if place % 2 else re.escape(part) for place, part in enumerate(parts)))


@functools.cache
def _preset_titles(language: str) -> dict[str, str]:
    return {preset.title: preset.words(language).title for preset in list_presets()}
