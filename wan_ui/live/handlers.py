"""Render the live view when a page opens. Keys and prompts are sent to `wan_ui.live.routes`."""

from collections.abc import Mapping
from dataclasses import dataclass

import gradio as gr

from wan_ui.components.events import Updates, Values
from wan_ui.form.load_settings import link_values
from wan_ui.live.html import live_html, live_presets
from wan_ui.services.caller import Caller
from wan_ui.services.panel import Panel
from wan_ui.services.studio_context import StudioContext


@dataclass(frozen=True, kw_only=True)
class LiveHandlers(Panel):
    """The handlers of the live view. `wan_ui.live.routes` sends frames and state."""

    context: StudioContext
    panel: gr.HTML

    @property
    def outputs(self) -> list[gr.blocks.Block]:
        return [self.panel]

    def initial_updates(self, caller: Caller, parameters: Mapping[str, str], values: Values) -> Updates:
        """Render the view in the visitor's language, with the settings of a link.

        A reloaded page continues to show the visitor's running live video.
        """
        presets = live_presets(self.context.preset_filter(caller))
        fill = link_values(parameters.get("settings"), presets)
        running = [job.id for job in self.context.engine.library.unended(caller.owner) if job.summary.is_open]
        return {self.panel: live_html(presets, running[0] if running else "", caller.texts, fill)}
