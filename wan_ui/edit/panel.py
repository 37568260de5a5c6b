"""The edit view's panel: one piece of HTML, whose own scripts talk to `wan_ui.edit.routes`, and to Gradio once a video is queued.

Element ids: `edit`, inside it `edit-file`, `edit-player`, `edit-from`, `edit-to`, `edit-part`, `edit-preset`, `edit-prompt`,
`edit-strength`, `edit-size`, `edit-seed`, `edit-steps`, `edit-guidance`, `edit-guidance-low`, `edit-negative`, `edit-make`,
`edit-stop`; of the ways `edit-canvas`, `edit-brush`, `edit-eraser`, `edit-brush-size`, `edit-undo`, `edit-clear`, `edit-play`,
`edit-invert`, `edit-mask`, `edit-mask-remove`, `edit-keeps`, `edit-left`, `edit-top`, `edit-right`, `edit-bottom`, `edit-inner`,
`edit-kind`, `edit-where`, `edit-overlap`, `edit-length`, `edit-goes`, `edit-keys-first`, `edit-keys`, `edit-key-remove`,
`edit-references`, `edit-scale`.
"""

from dataclasses import dataclass
from pathlib import Path

import gradio as gr

from wan_ui.desk.desk import Desk
from wan_ui.edit.html import clip_presets, edit_html
from wan_ui.parts.events import script_that_talks
from wan_ui.words.english import Texts

_SCRIPT = script_that_talks("edit", *(Path(__file__).with_name(f"{name}.js") for name in ("brush", "keys", "ways", "clip", "edit")))


@dataclass(frozen=True, kw_only=True)
class EditPanel:
    """The panel's one component."""

    view: gr.HTML


def build_edit_panel(desk: Desk, texts: Texts) -> EditPanel:
    """Builds the panel, with no clip in it."""
    html = edit_html(clip_presets(desk.offers()), texts)
    return EditPanel(view=gr.HTML(html, js_on_load=_SCRIPT, elem_id="edit", apply_default_css=False))
