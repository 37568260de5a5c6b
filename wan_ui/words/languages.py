"""The page's languages, by the code that browsers ask for."""

import re
from collections.abc import Mapping

from wan_ui.words.chinese import CHINESE
from wan_ui.words.english import ENGLISH, Texts

LANGUAGES = {texts.language: texts for texts in (ENGLISH, CHINESE)}


def texts_for(headers: Mapping[str, str]) -> Texts:
    """The words for an Accept-Language header, by the order in which it names languages."""
    for tag in re.findall(r"[A-Za-z]{2,3}(?=[-;,]|$)", headers.get("accept-language", "")):
        if tag.lower() in LANGUAGES:
            return LANGUAGES[tag.lower()]
    return ENGLISH
