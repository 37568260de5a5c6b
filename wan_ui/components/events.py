"""How events are wired: outside Gradio's queue, so that no click waits for the followers, and private: they are no API."""

import json
import time
from collections.abc import Callable
from typing import Any, Literal, TypedDict

import gradio as gr

Listener = Callable[..., gr.events.Dependency]
Updates = dict[gr.blocks.Block, Any]
Values = dict[gr.blocks.Block, Any]  # as the page sends them, unchecked


class _Silent(TypedDict):
    """Arguments of Gradio's listeners, such as `gr.Button.click`."""

    show_progress: Literal["hidden"]
    show_progress_on: list[gr.Component]
    api_visibility: Literal["private"]


class _Quiet(_Silent):
    queue: bool


class _Raw(_Quiet):
    preprocess: bool


class _Each(_Raw):
    trigger_mode: Literal["multiple"]


class _Last(TypedDict):
    trigger_mode: Literal["always_last"]


# No progress is shown, and on no component. Otherwise Gradio's page goes through all components that any answer has ever changed,
# with each piece of each answer, to tell them of progress that is hidden: a third of its work while a video is made (6.31).
SILENT: _Silent = {"show_progress": "hidden", "show_progress_on": [], "api_visibility": "private"}

QUIET: _Quiet = {"queue": False, **SILENT}

# For events that read the form: the request checks its values once, and errors are shown at their controls.
RAW: _Raw = {**QUIET, "preprocess": False}

# For events that follow a value: the last one counts, though the answer to an earlier one may still be on its way.
LAST: _Last = {"trigger_mode": "always_last"}
EACH: _Each = {**RAW, "trigger_mode": "multiple"}  # for buttons that may be pressed faster than the server answers


def start_script(script: str, *events: str) -> str:
    """The `js_on_load` of an HTML component: starts one of the scripts that `wan_ui/assets/studio.js` lists by name.

    Args:
        events: The component's own events, which the script triggers. Gradio finds their names in this text, in quotes.
    """
    return f"studio.start({json.dumps(script)}, {{element, props, trigger, upload, watch}}, {json.dumps(events)});"


def now_microseconds() -> int:
    """Now, in microseconds since the epoch: to be taken before what is drawn is read."""
    return time.time_ns() // 1000


def stamp_html(html: str, moment: int) -> str:
    """The drawing of a part that several answers draw, with the `moment` before it, by which a page knows the newest."""
    return f"<!--{moment}-->{html}"
