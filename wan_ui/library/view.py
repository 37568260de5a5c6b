"""The view of all videos that were made."""

from wan_ui.library.handlers import LibraryHandlers
from wan_ui.library.panel import build_library_panel
from wan_ui.view import Shell, View


def build_library(shell: Shell) -> LibraryHandlers:
    """The panel with its handlers."""
    return LibraryHandlers(desk=shell.desk, panel=build_library_panel(shell.texts, shell.labels), message=shell.message)


LIBRARY = View(key="library", title="view_library", build=build_library)
