"""The storyboard's editor: a switch, and lines of prompt, seconds and seed that can be added, removed and moved.

The lines live in the page; `shots.js` writes them as JSON into a text field that is not seen. Empty text is no storyboard.
Element ids: `shots`, `shots-editor`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from backend.contract.request import GenerationRequest
from backend.contract.settings import Shot
from backend.errors import RequestError
from wan_ui.door.body_limit import LONGEST_TEXT
from wan_ui.words.english import Texts

_SCRIPT = Path(__file__).with_name("shots.js")


@dataclass(frozen=True, kw_only=True)
class ShotsPanel:
    """The editor, and the field that holds its lines."""

    lines: gr.Textbox
    editor: gr.HTML

    def show(self, request: GenerationRequest, texts: Texts) -> dict[gr.Component, Any]:
        """Gradio updates that show the request's shots, or none."""
        return {self.lines: lines_of(request), self.editor: editor_html(request.shots, request.fps, texts)}


def build_shots_panel(texts: Texts) -> ShotsPanel:
    """Builds the panel, with the switch off."""
    lines = gr.Textbox(value="", visible="hidden", elem_id="shots", max_length=LONGEST_TEXT)
    editor = gr.HTML(editor_html((), 1, texts), js_on_load=_SCRIPT.read_text("utf-8"), elem_id="shots-editor")
    return ShotsPanel(lines=lines, editor=editor)


def read_lines(text: Any) -> tuple[dict[str, Any], ...]:
    """The lines as rows of a storyboard; none if the switch is off. Raises: RequestError."""
    if not text:
        return ()
    try:
        rows = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        rows = None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RequestError("shots", "must be lines of prompt, seconds and seed", "open the page anew")
    return tuple({name: value for name, value in row.items() if value not in ("", None)} | _prompt(row) for row in rows)


def _prompt(row: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": row.get("prompt") or ""}


def lines_of(request: GenerationRequest) -> str:
    """What the field holds for this request."""
    rows = [
        {"prompt": shot.prompt, "seconds": _seconds(shot, request.fps), "seed": "" if shot.seed is None else shot.seed}
        for shot in request.shots
    ]
    return json.dumps(rows, ensure_ascii=False) if rows else ""


def editor_html(shots: Sequence[Shot], fps: int, texts: Texts) -> str:
    """The switch, the lines, the button for one more, and a line to copy."""
    rows = "".join(_row(shot.prompt, _seconds(shot, fps), "" if shot.seed is None else str(shot.seed), texts) for shot in shots)
    return (
        f'<div class="shots" data-on="{"true" if shots else "false"}">'
        f'<label class="shots-switch"><input type="checkbox"{" checked" if shots else ""}>'
        f"<span>{escape(texts.storyboard)}</span></label>"
        f'<p class="hint">{escape(texts.storyboard_hint)}</p><ol>{rows}</ol>'
        f'<button type="button" class="shots-add" data-shot="add">{escape(texts.shot_add)}</button>'
        f"<template>{_row('', '', '', texts)}</template></div>"
    )


def _row(prompt: str, seconds: str, seed: str, texts: Texts) -> str:
    buttons = "".join(
        f'<button type="button" data-shot="{what}" title="{escape(words)}" aria-label="{escape(words)}">{sign}</button>'
        for what, words, sign in (("up", texts.shot_up, "↑"), ("down", texts.shot_down, "↓"), ("remove", texts.shot_remove, "×"))
    )
    placeholder = escape(texts.shot_prompt)
    return (
        f'<li><textarea name="prompt" rows="2" aria-label="{placeholder}" placeholder="{placeholder}">{escape(prompt)}</textarea>'
        f"<label>{escape(texts.shot_seconds)}"
        f'<input name="seconds" type="number" min="0" step="any" value="{escape(seconds)}"></label>'
        f'<label>{escape(texts.seed)}<input name="seed" type="number" min="0" step="1" value="{escape(seed)}"></label>'
        f'<span class="shot-buttons">{buttons}</span></li>'
    )


def _seconds(shot: Shot, fps: int) -> str:
    return "" if shot.num_frames is None else f"{shot.num_frames / fps:.3f}".rstrip("0").rstrip(".")
