"""The view of the machine."""

from wan_ui.desk.view import Shell, View
from wan_ui.system.handlers import SystemHandlers
from wan_ui.system.panel import build_system_panel


def build_system(shell: Shell) -> SystemHandlers:
    """The panel with its handlers."""
    return SystemHandlers(desk=shell.desk, panel=build_system_panel(), message=shell.message)


SYSTEM = View(key="system", title="view_system", build=build_system)
