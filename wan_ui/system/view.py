"""The view of the machine."""

from wan_ui.system.handlers import SystemHandlers
from wan_ui.system.panel import build_system_panel
from wan_ui.view import Shell, View


def build_system(shell: Shell) -> SystemHandlers:
    """The panel with its handlers."""
    return SystemHandlers(desk=shell.desk, panel=build_system_panel(), message=shell.message)


SYSTEM = View(key="system", title="view_system", build=build_system)
