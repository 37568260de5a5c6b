"""One line at the bottom of the page that reports what has just happened.

It can offer a button, open a view, and copy a link. Element id: `message`.
"""

import secrets
from dataclasses import dataclass
from html import escape
from typing import Self

from backend.errors import StudioError
from wan_ui.components.field_errors import error_sentence
from wan_ui.i18n.english import Texts


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message for the line at the bottom of the page.

    Args:
        button: HTML from `wan_ui.components.buttons`.
        view: The view to open. "stage" opens a view with the stage, unless the open view already shows the stage.
        copy: Text for the clipboard.
    """

    text: str = ""
    button: str = ""
    view: str = ""
    copy: str = ""
    is_bad: bool = False

    @classmethod
    def from_error(cls, error: StudioError) -> Self:
        return cls(text=error_sentence(error), is_bad=True)

    def html(self, texts: Texts) -> str:
        """Render the line. A random number lets the page notice a repeated message."""
        where = f'<input readonly value="{escape(self.copy)}" aria-label="{escape(texts.copy_link)}">' if self.copy else ""
        by_hand = f' data-by-hand="{escape(texts.copy_by_hand)}"' if self.copy else ""
        return (
            f'<div class="message" role="{"alert" if self.is_bad else "status"}" data-nonce="{secrets.token_hex(4)}"'
            f' data-view="{escape(self.view)}" data-copy="{escape(self.copy)}"{by_hand}'
            f' data-bad="{"true" if self.is_bad else "false"}">'
            f"<span>{escape(self.text)}</span>{where}{self.button}"
            f'<button type="button" class="close" aria-label="{escape(texts.close)}">×</button></div>'
        )
