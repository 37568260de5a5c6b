"""The live view's panel: one piece of HTML, whose own script talks to `wan_ui.live.routes` without a detour through Gradio.

Element ids: `live`, inside it `live-preset`, `live-prompt`, `live-start`, `live-stop`, `live-canvas`.
"""

from dataclasses import dataclass
from pathlib import Path

import gradio as gr

from presets import list_presets
from wan_ui.desk.desk import Desk
from wan_ui.live.html import live_html
from wan_ui.parts.events import script_that_talks
from wan_ui.words.english import Texts

_SCRIPT = script_that_talks("live", Path(__file__).with_name("live.js"))


@dataclass(frozen=True, kw_only=True)
class LivePanel:
    """The panel's one component."""

    view: gr.HTML


def build_live_panel(desk: Desk, texts: Texts) -> LivePanel:
    """Builds the panel, with nothing running."""
    presets = [preset for preset in list_presets() if preset.live and desk.offers()(preset)]
    return LivePanel(view=gr.HTML(live_html(presets, "", texts), js_on_load=_SCRIPT, elem_id="live", apply_default_css=False))
