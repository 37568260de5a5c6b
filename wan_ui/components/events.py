"""Arguments of Gradio's event listeners.

Most events run outside Gradio's queue, because events that follow a job occupy the queue until the job ends. All events are
private: Gradio's API does not include them.
"""

import json
import time
from collections.abc import Callable
from typing import Any, Literal, TypedDict

import gradio as gr

Listener = Callable[..., gr.events.Dependency]
Updates = dict[gr.blocks.Block, Any]
Values = dict[gr.blocks.Block, Any]  # values of components as the page sends them, unchecked


class _Silent(TypedDict):
    """Arguments of listeners such as `gr.Button.click`. They hide progress and keep the event out of Gradio's API."""

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


# Show progress on no component. If any component shows progress, Gradio's page (6.31) visits all components that were ever
# updated, once for each message from the server. This takes a third of the page's processor time during a generation (measured).
SILENT: _Silent = {"show_progress": "hidden", "show_progress_on": [], "api_visibility": "private"}

QUIET: _Quiet = {"queue": False, **SILENT}

# For events that read the form. They skip Gradio's checks, because the request validates all values and the page shows errors at
# the controls.
RAW: _Raw = {**QUIET, "preprocess": False}

# For events that report each change of a value. While the server answers one event, only the newest event waits, and runs next.
LAST: _Last = {"trigger_mode": "always_last"}
EACH: _Each = {**RAW, "trigger_mode": "multiple"}  # for buttons that can be pressed faster than the server answers


def start_script(script: str, *events: str) -> str:
    """Return the `js_on_load` of an HTML component, which starts a script of the page.

    Args:
        script: The script's name in the list in `wan_ui/assets/studio.js`.
        events: Names of the component's events that the script can trigger. Gradio finds the quoted names in the returned text.
    """
    return f"studio.start({json.dumps(script)}, {{element, props, trigger, upload, watch}}, {json.dumps(events)});"


def now_microseconds() -> int:
    """Return the time since the epoch in microseconds. Call it before reading the data that is rendered."""
    return time.time_ns() // 1000


def stamp_html(html: str, moment: int) -> str:
    """Put `moment` into a comment before the HTML. If several responses contain the same part, the page shows the newest HTML."""
    return f"<!--{moment}-->{html}"
