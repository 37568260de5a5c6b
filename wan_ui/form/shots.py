"""The storyboard: a switch, and a timeline of shots with a soundtrack. `storyboard*.js` draws and changes the timeline.

The timeline is stored in the page. The script writes it as JSON into a hidden text field. An empty text means no storyboard.
Element ids: `shots`, `shots-editor`, `shots-sent`, `shots-figures`.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

from backend.engine.job import Job
from backend.errors import RequestError
from backend.schemas.request import GenerationRequest
from presets import Preset
from wan_ui.components.events import start_script
from wan_ui.form.shots_html import storyboard_html
from wan_ui.gateway.body_limit import LONGEST_TEXT
from wan_ui.gateway.uploads import copy_to_cache
from wan_ui.i18n.english import Texts

_TRACK = ("track_start", "track_fade", "track_volume")
_ROW = ("prompt", "seconds", "num_frames", "seed", "cut", "image", "fade", "job", "trim", "fps")
_BLOCK = re.compile(r"[a-z0-9]{1,16}")


@dataclass(frozen=True, kw_only=True)
class ShotsPanel:
    """The timeline's components.

    `timeline` holds the timeline as text. `sent_job` has the id of the job that was queued with these shots. `max_characters`
    holds the number of characters that a shot can show with the chosen preset.
    """

    timeline: gr.Textbox
    editor: gr.HTML
    sent_job: gr.HTML
    max_characters: gr.HTML

    def show_shots(self, request: GenerationRequest, texts: Texts) -> dict[gr.blocks.Block, object]:
        """Return Gradio updates that show the request's shots without their files."""
        most = {self.max_characters: max_characters_html(request.resolved_preset)}
        return self._updates(storyboard_values(request), texts) | most

    def load_job(self, job: Job, texts: Texts) -> dict[gr.blocks.Block, object]:
        """Return Gradio updates that show a job's shots with images, characters, soundtrack and finished videos.

        Return no updates for a job without a storyboard.
        """
        if not job.request.shots:
            return {}
        request = job.request
        film: dict[str, Any] = storyboard_values(request) | {"job": job.id}
        for row, shot in zip(film["shots"], request.shots, strict=True):
            if shot.image is not None:
                row["image"] = copy_to_cache(request.shot_images[shot.image])
        for row, figure in zip(film["figures"], request.figures, strict=True):
            if figure.image is not None:
                row["image"] = copy_to_cache(request.figure_images[figure.image])
        track = {"track": copy_to_cache(request.track)} if request.track else {}
        return self._updates(film | track, texts)

    def _updates(self, film: dict[str, object], texts: Texts) -> dict[gr.blocks.Block, object]:
        text = json.dumps(film, ensure_ascii=False) if film["shots"] else ""
        return {self.timeline: text, self.editor: storyboard_html(text, texts)}


def build_shots_panel(preset: Preset, texts: Texts) -> ShotsPanel:
    """Build the panel for this preset, with the switch off."""
    timeline = gr.Textbox(value="", visible="hidden", elem_id="shots", max_length=LONGEST_TEXT)
    editor = gr.HTML(storyboard_html("", texts), js_on_load=start_script("film"), elem_id="shots-editor", apply_default_css=False)
    sent_job = gr.HTML("", js_on_load=start_script("film_sent"), elem_id="shots-sent", apply_default_css=False)
    script = start_script("film_figures")
    max_characters = gr.HTML(max_characters_html(preset), js_on_load=script, elem_id="shots-figures", apply_default_css=False)
    return ShotsPanel(timeline=timeline, editor=editor, sent_job=sent_job, max_characters=max_characters)


def max_characters_html(preset: Preset) -> str:
    """Render the number of characters that a shot can show, for the script. It is 0 if the preset takes no references."""
    return f'<i data-most="{preset.max_references if "references" in preset.inputs else 0}"></i>'


def read_storyboard(text: object) -> dict[str, Any]:
    """Read the shots, the characters and the soundtrack from the timeline's text. Return {} if the switch is off.

    Raises: RequestError.
    """
    film = _parse_timeline(text)
    rows = film.get("shots")
    if not rows:
        return {}
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RequestError("shots", "must be a list of shots", "reload the page")
    settings = {name: film[name] for name in _TRACK if film.get(name) not in ("", None)}
    track = {"track": film["track"], **settings} if film.get("track") else {}
    figures = {"figures": film["figures"]} if film.get("figures") else {}
    given = ({name: row[name] for name in _ROW if row.get(name) not in ("", None, False)} for row in rows)
    shots = tuple(row if "job" in row else row | {"prompt": row.get("prompt") or ""} for row in given)
    return {"shots": shots, **figures, **track}


def convert_frame_rate(rows: Sequence[dict[str, object]], fps: object) -> list[dict[str, object]]:
    """Convert the numbers of frames of finished shots to the frame rate `fps`. Leave values of a wrong type unchanged."""
    converted = [dict[str, Any](row) for row in rows]
    for row in converted:
        own, count = row.pop("fps", None), row.get("num_frames")
        if all(isinstance(one, int) and 0 < one <= 100_000 for one in (own, count, fps)):
            row["num_frames"] = round(count / own * fps)
    return converted


def sent_job_html(text: object, job: Job) -> str:
    """Render the job's id and the ids of the job's shots, for the script. Return "" without shots.

    `text` is the timeline that was queued.
    """
    try:
        blocks = _parse_timeline(text).get("blocks")
    except RequestError:
        return ""
    if not job.request.shots or not isinstance(blocks, list):
        return ""
    named = ",".join(block for block in blocks if isinstance(block, str) and _BLOCK.fullmatch(block))
    return f'<i data-job="{escape(job.id)}" data-blocks="{escape(named)}"></i>'


def _parse_timeline(text: Any) -> dict[str, object]:
    if not text:
        return {}
    try:
        film = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        film = None
    if not isinstance(film, dict):
        raise RequestError("shots", "must be a timeline", "reload the page")
    return film


def storyboard_values(request: GenerationRequest) -> dict[str, object]:
    """Return the timeline of this request, without files."""
    track = {name: getattr(request, name) for name in _TRACK} if request.track else {}
    figures = [{"name": figure.name, "image": None} for figure in request.figures]
    shots: list[dict[str, object]] = []
    for shot in request.shots:
        seconds = "" if shot.num_frames is None else f"{shot.num_frames / request.fps:.3f}".rstrip("0").rstrip(".")
        row = {"prompt": shot.prompt, "seconds": seconds, "seed": "" if shot.seed is None else shot.seed, "cut": shot.cut}
        shots.append({**row, "fade": shot.fade, **({"trim": shot.trim} if shot.trim else {})})
    return {"shots": shots, "figures": figures, **track}
