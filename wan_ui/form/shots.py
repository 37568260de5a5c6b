"""The film: a switch, and a timeline of shots with a sound below, that `film*.js` draws and changes.

The timeline lives in the page; the script writes it as JSON into a text field that is not seen. Empty text is no storyboard.
Element ids: `shots`, `shots-editor`, `shots-sent`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from backend.contract.request import GenerationRequest
from backend.contract.settings import Shot, only_with
from backend.engine.job import Job
from backend.errors import RequestError
from wan_ui.door.body_limit import LONGEST_TEXT
from wan_ui.door.uploads import to_cache
from wan_ui.form.shots_html import editor_html
from wan_ui.parts.events import script_that_talks
from wan_ui.words.english import Texts

_SCRIPTS = [Path(__file__).with_name(f"{name}.js") for name in ("film", "film_edit", "film_track", "film_play", "film_made")]
_TELL = "watch('value', () => window.studioFilmSent?.(props.value));"
_ROW = ("prompt", "seconds", "num_frames", "seed", "cut", "image", "fade", "job", "trim")
_BLOCK = re.compile(r"[a-z0-9]{1,16}")


@dataclass(frozen=True, kw_only=True)
class ShotsPanel:
    """The timeline, the field that holds it as text, and what says which job its shots were sent to."""

    lines: gr.Textbox
    editor: gr.HTML
    sent: gr.HTML

    def show(self, request: GenerationRequest, texts: Texts) -> dict[gr.Component, Any]:
        """Gradio updates that show the request's shots without their files, or none."""
        return self._shown(film_of(request), texts)

    def load(self, job: Job, texts: Texts) -> dict[gr.Component, Any]:
        """Gradio updates that show a job's shots with their pictures, their sound, and what is made of them; none for a job that
        is no storyboard."""
        if not job.request.shots:
            return {}
        film, request = film_of(job.request) | {"job": job.id}, job.request
        for row, shot in zip(film["shots"], request.shots, strict=True):
            if shot.image is not None:
                row["image"] = to_cache(request.shot_images[shot.image])
        track = {"track": to_cache(request.track)} if request.track else {}
        return self._shown(film | track, texts)

    def _shown(self, film: dict[str, Any], texts: Texts) -> dict[gr.Component, Any]:
        text = json.dumps(film, ensure_ascii=False) if film["shots"] else ""
        return {self.lines: text, self.editor: editor_html(text, texts)}


def build_shots_panel(texts: Texts) -> ShotsPanel:
    """Builds the panel, with the switch off."""
    lines = gr.Textbox(value="", visible="hidden", elem_id="shots", max_length=LONGEST_TEXT)
    script = script_that_talks("shots", *_SCRIPTS)
    editor = gr.HTML(editor_html("", texts), js_on_load=script, elem_id="shots-editor", apply_default_css=False)
    sent = gr.HTML("", js_on_load=_TELL, elem_id="shots-sent", apply_default_css=False)
    return ShotsPanel(lines=lines, editor=editor, sent=sent)


def read_film(text: Any) -> dict[str, Any]:
    """The shots as rows and the sound below them, as a request's settings; nothing if the switch is off. Raises: RequestError."""
    film = _object(text)
    rows = film.get("shots")
    if not rows:
        return {}
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RequestError("shots", "must be a list of shots", "open the page anew")
    settings = {name: film[name] for name in only_with("story") if name != "shots" and film.get(name) not in ("", None)}
    track = {"track": film["track"], **settings} if film.get("track") else {}
    return {"shots": tuple(map(_row, rows)), **track}


def sent_html(text: Any, job: Job) -> str:
    """Says to the script which job the blocks of this text were sent to; "" for no storyboard."""
    try:
        blocks = _object(text).get("blocks")
    except RequestError:
        return ""
    if not job.request.shots or not isinstance(blocks, list):
        return ""
    named = ",".join(block for block in blocks if isinstance(block, str) and _BLOCK.fullmatch(block))
    return f'<i data-job="{escape(job.id)}" data-blocks="{named}"></i>'


def _object(text: Any) -> dict[str, Any]:
    if not text:
        return {}
    try:
        film = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        film = None
    if not isinstance(film, dict):
        raise RequestError("shots", "must be a timeline", "open the page anew")
    return film


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: row[name] for name in _ROW if row.get(name) not in ("", None, False)}
    return given if "job" in given else given | {"prompt": row.get("prompt") or ""}


def film_of(request: GenerationRequest) -> dict[str, Any]:
    """What the field holds for this request, without files."""
    track = {name: getattr(request, name) for name in only_with("story") if name != "shots"} if request.track else {}
    return {"shots": _rows_of(request.shots, request.fps), **track}


def _rows_of(shots: Sequence[Shot], fps: int) -> list[dict[str, Any]]:
    return [
        {
            "prompt": shot.prompt,
            "seconds": _seconds(shot, fps),
            "seed": "" if shot.seed is None else shot.seed,
            "cut": shot.cut,
            "fade": shot.fade,
            **({"trim": shot.trim} if shot.trim else {}),
        }
        for shot in shots
    ]


def _seconds(shot: Shot, fps: int) -> str:
    return "" if shot.num_frames is None else f"{shot.num_frames / fps:.3f}".rstrip("0").rstrip(".")
