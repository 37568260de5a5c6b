"""The live view: one piece of HTML, whose script calls `wan_ui.live.routes` directly, without Gradio."""

import gradio as gr

from wan_ui.components.events import start_script
from wan_ui.gateway.rules import Rules
from wan_ui.live.handlers import LiveHandlers
from wan_ui.live.html import live_html, live_presets
from wan_ui.live.routes import live_routes
from wan_ui.view import Shell, View


def build_live(shell: Shell) -> LiveHandlers:
    """Build the panel without a video, and its handlers."""
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
