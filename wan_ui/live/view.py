"""The view in which a video is steered while it is made."""

from wan_ui.door.rules import Rules
from wan_ui.live.handlers import LiveHandlers
from wan_ui.live.panel import build_live_panel
from wan_ui.live.routes import live_routes
from wan_ui.view import Shell, View


def build_live(shell: Shell) -> LiveHandlers:
    """The panel with its handlers."""
    return LiveHandlers(desk=shell.desk, panel=build_live_panel(shell.desk, shell.texts))


RULES: Rules = {
    "/studio/live": "login",
    "/studio/live/{job_id}/frames": "visitor",
    "/studio/live/{job_id}/say": "visitor",
    "/studio/live/{job_id}/stop": "visitor",
}
STREAMS = ("/studio/live/[^/]+/frames",)
LIVE = View(key="live", title="view_live", build=build_live, routes=live_routes, rules=RULES, streams=STREAMS)
