"""Labels of Gradio's components, as keys that Gradio translates in the browser.

The server renders HTML panels in the visitor's language instead. Both use the texts of `wan_ui.i18n.languages`.
"""

from dataclasses import fields
from typing import Any

import gradio as gr

from wan_ui.i18n.english import Texts
from wan_ui.i18n.languages import LANGUAGES

_PREFIX, _DESCRIPTION = "studio_", "description_"
_BROWSERS_NAMES = {"zh": ("zh", "zh-CN", "zh-TW")}  # language of the page -> browser languages for which it is used


def translations() -> gr.I18n:
    """Return the page's texts by key, in all languages, for Gradio's `launch`."""
    words = {code: _plain(texts) for code, texts in LANGUAGES.items()}
    return gr.I18n(**{name: words[code] for code in words for name in _BROWSERS_NAMES.get(code, (code,))})


def labels() -> Texts:
    """Return `Texts` with keys in place of texts. Gradio's components accept a key as a label."""
    i18n = translations()
    keys: dict[str, Any] = {name.removeprefix(_PREFIX): i18n(name) for name in _plain(Texts())}
    known = {field.name for field in fields(Texts)}
    descriptions = tuple((name, keys[f"{_DESCRIPTION}{name}"]) for name, _ in Texts().descriptions)
    return Texts(**{name: key for name, key in keys.items() if name in known}, descriptions=descriptions)


def _plain(texts: Texts) -> dict[str, str]:
    """Return the texts that are strings, and the descriptions of settings, by key. No key of Gradio starts with `_PREFIX`."""
    words = {_PREFIX + field.name: getattr(texts, field.name) for field in fields(Texts)}
    words |= {f"{_PREFIX}{_DESCRIPTION}{name}": texts.describe_setting(name) for name, _ in Texts().descriptions}
    return {name: word for name, word in words.items() if isinstance(word, str)}
