"""The languages of the page by their codes, and the choice of a visitor's language."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wan_ui.i18n.english import ENGLISH, Texts


def _read(path: Path) -> Texts:
    def as_tuple(value: Any) -> Any:
        return tuple(map(as_tuple, value)) if isinstance(value, list) else value

    return Texts(**{name: as_tuple(value) for name, value in tomllib.loads(path.read_text("utf-8")).items()})


LANGUAGES = {texts.language: texts for texts in (ENGLISH, *map(_read, sorted(Path(__file__).parent.glob("*.toml"))))}
_CHOSEN = re.compile(r"(?:^|;\s*)studio_language=(\w+)")  # the cookie that wan_ui/assets/language.js sets


def texts_for(headers: Mapping[str, str]) -> Texts:
    """Return the texts in the language that the visitor chose, else in the first known language that the browser names.

    Args:
        headers: Headers of the request. `cookie` and `accept-language` are read.
    """
    chosen = _CHOSEN.search(headers.get("cookie", ""))
    if chosen and chosen[1] in LANGUAGES:
        return LANGUAGES[chosen[1]]
    for tag in re.findall(r"[A-Za-z]{2,3}(?=[-;,]|$)", headers.get("accept-language", "")):
        if tag.lower() in LANGUAGES:
            return LANGUAGES[tag.lower()]
    return ENGLISH
