"""The live view: one piece of HTML, whose script calls `wan_ui.live.routes` directly, without Gradio."""

from collections.abc import Mapping
from dataclasses import dataclass

import gradio as gr

from wan_ui.components.events import Updates, Values, start_script
from wan_ui.form.load_settings import link_values
from wan_ui.gateway.rules import Rules
from wan_ui.live.html import live_html, live_presets
from wan_ui.live.routes import live_routes
from wan_ui.services.caller import Caller
from wan_ui.services.panel import Panel
from wan_ui.services.studio_context import StudioContext
from wan_ui.view import Shell, View


@dataclass(frozen=True, kw_only=True)
class LiveHandlers(Panel):
    context: StudioContext
    panel: gr.HTML

    @property
    def outputs(self) -> list[gr.blocks.Block]:
        return [self.panel]

    def initial_updates(self, caller: Caller, parameters: Mapping[str, str], values: Values) -> Updates:
        """Render the view with the settings of a link. A reloaded page continues to show the visitor's running live video."""
        presets = live_presets(self.context.preset_filter(caller))
        fill = link_values(parameters.get("settings"), presets)
        running = [job.id for job in self.context.engine.library.unended(caller.owner) if job.summary.is_open]
        return {self.panel: live_html(presets, running[0] if running else "", caller.texts, fill)}


def build_live(shell: Shell) -> LiveHandlers:
    presets = live_presets(shell.context.preset_filter())
    panel = gr.HTML(live_html(presets, "", shell.texts), js_on_load=start_script("live"), elem_id="live", apply_default_css=False)
    return LiveHandlers(context=shell.context, panel=panel)


RULES: Rules = {
    "/studio/live": "login",
    "/studio/live/presets": "login",
    "/studio/live/{job_id}/frames": "visitor",
    "/studio/live/{job_id}/say": "visitor",
    "/studio/live/{job_id}/stop": "visitor",
}
STREAMS = ("/studio/live/[^/]+/frames",)
LIVE = View(key="live", title="view_live", build=build_live, routes=live_routes, rules=RULES, streams=STREAMS)
