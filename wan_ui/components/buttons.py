"""HTML buttons of the panels, and the component that receives their presses.

A button names its act in `data-act` ("group:what") and its job in `data-job`, with an optional `data-value`. The page's script
sends each press to the hidden component `act`, which triggers the Gradio event of the group. So panels are plain HTML, and each
group has one handler with its own outputs. Groups of all views are `FORM_ACTS` (`wan_ui.form.handlers`) and `QUEUE_ACTS`
(`wan_ui.queue.handlers`). Views define more groups.
"""

from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

from wan_ui.components.icons import icon
from wan_ui.i18n.english import Texts

_LONGEST = 500_000  # characters; an exported file of presets is the longest value


@dataclass(frozen=True, kw_only=True)
class Act:
    """A visitor's press of a button: what to do, a job's id and a value. A missing text is "".

    A caller can send any texts, so the handler must check all three.
    """

    what: str
    job: str
    value: str

    @classmethod
    def from_event(cls, event: gr.EventData) -> "Act":
        """Read the press from a Gradio event. Drop other data, and cut texts that are too long."""
        data: dict[str, Any] = event._data if isinstance(event._data, dict) else {}
        texts = {name: str(data.get(name) or "")[:_LONGEST] for name in ("what", "job", "value")}
        return cls(**texts)


def icon_button(act: str, name: str, label: str, **data: str) -> str:
    """Render an icon button. `label` is its tooltip and its name for screen readers."""
    return quiet_button(name, label, _data_attributes(act, data))


def quiet_button(name: str, label: str, attributes: str, classes: str = "quiet-button", pressed_icon: str = "") -> str:
    """Render an icon button with these HTML attributes and CSS classes."""
    words, drawings = escape(label), icon(name) + (icon(pressed_icon) if pressed_icon else "")
    return f'<button type="button" class="{classes}" title="{words}" aria-label="{words}" {attributes}>{drawings}</button>'


def sound_button(label: str, attributes: str) -> str:
    """Render a speaker button. The speaker is crossed out until the button is pressed."""
    return quiet_button(
        "sound", label, f'aria-pressed="false" {attributes}', classes="quiet-button sound-button", pressed_icon="muted"
    )


def play_button(texts: Texts, attributes: str) -> str:
    """Render a play button. While the video plays, the page's script shows a pause icon and label."""
    words = f'data-words="{escape(texts.play)}" data-pause-words="{escape(texts.pause)}"'
    return quiet_button("play", texts.play, f"{words} {attributes}", classes="quiet-button play-button", pressed_icon="pause")


def text_button(act: str, label: str, *, name: str = "", hint: str = "", **data: str) -> str:
    """Render a button with a label, and with the icon `name` if given."""
    title = f' title="{escape(hint)}"' if hint else ""
    drawing = icon(name) if name else ""
    return f'<button type="button" {_data_attributes(act, data)}{title}>{drawing}<span>{escape(label)}</span></button>'


def _data_attributes(act: str, data: dict[str, str]) -> str:
    return " ".join([f'data-act="{escape(act)}"', *(f'data-{key}="{escape(value)}"' for key, value in data.items())])
