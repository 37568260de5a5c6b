"""The view in which a video is steered while it is made."""

from wan_ui.desk.view import Shell, View
from wan_ui.live.handlers import LiveHandlers
from wan_ui.live.panel import build_live_panel
from wan_ui.live.routes import live_routes


def build_live(shell: Shell) -> LiveHandlers:
    """The panel with its handlers."""
    return LiveHandlers(desk=shell.desk, panel=build_live_panel(shell.desk, shell.texts))


LIVE = View(key="live", title="view_live", build=build_live, routes=live_routes)
