"""The words of components as keys that Gradio translates in the browser. HTML panels are drawn in the visitor's language
by the server instead (`wan_ui.i18n.languages`). Both use the words of `wan_ui.i18n.languages`."""

from dataclasses import fields
from typing import Any

import gradio as gr

from wan_ui.i18n.english import Texts
from wan_ui.i18n.languages import LANGUAGES

_PREFIX = "studio_"
_BROWSERS_NAMES = {"zh": ("zh", "zh-CN", "zh-TW")}  # browsers' names for a language that we have once


def translations() -> gr.I18n:
    """All plain words in all languages, for `launch`."""
    words = {code: _plain(texts) for code, texts in LANGUAGES.items()}
    return gr.I18n(**{name: words[code] for code in words for name in _BROWSERS_NAMES.get(code, (code,))})


def labels() -> Texts:
    """The words as keys: each field holds what Gradio's components take as a label."""
    i18n = translations()
    keys: dict[str, Any] = {name.removeprefix(_PREFIX): i18n(name) for name in _plain(Texts())}  # keys stand for strings
    return Texts(**keys)


def _plain(texts: Texts) -> dict[str, str]:
    """The words that are plain strings, by their keys; the prefix separates them from Gradio's own keys."""
    words = {_PREFIX + field.name: getattr(texts, field.name) for field in fields(Texts)}
    return {name: word for name, word in words.items() if isinstance(word, str)}
