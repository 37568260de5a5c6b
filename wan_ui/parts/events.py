"""How events are wired: outside Gradio's queue, so that no click waits for the followers, and private: they are no API."""

import time
from collections.abc import Callable
from pathlib import Path
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


def script_that_talks(view: str, *paths: Path) -> str:
    """For a view's `js_on_load`: its own scripts, after what all have in common that talk to the server themselves."""
    files = (Path(__file__).with_name("talk.js"), *paths)
    return f"const viewName = '{view}';\n{''.join(path.read_text('utf-8') for path in files)}"


def script_for(name: str) -> str:
    """For a `gr.HTML`'s `js_on_load`: the page's script shows there what the server tells about this part (see
    `wan_ui.routes.changes`). What was drawn before that which is shown already came late, and is not shown (see `at_moment`)."""
    return f"""
const momentOf = html => Number(/^<!--(\\d+)-->/.exec(html)?.[1] ?? 0);
let newest = props.value;
const take = html => {{
  if (momentOf(html) >= momentOf(newest)) newest = html;
  if (props.value !== newest) props.value = newest;
}};
(window.studioTold ??= {{}})['{name}'] = html => {{ take(props.value); take(html); }};
watch('value', () => take(props.value));
"""


def moment() -> int:
    """Now, in microseconds since the epoch: to be taken before what is drawn is read."""
    return time.time_ns() // 1000


def at_moment(html: str, moment: int) -> str:
    """The drawing of a part that several answers draw, with the `moment` before it, by which a page knows the newest."""
    return f"<!--{moment}-->{html}"
