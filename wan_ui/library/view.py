"""The library: the view of all finished videos."""

from wan_ui.library.handlers import LibraryHandlers
from wan_ui.library.panel import build_library_panel
from wan_ui.library.projects import ProjectHandlers
from wan_ui.view import Shell, View


def build_library(shell: Shell) -> LibraryHandlers:
    """Build the panel with its handlers."""
    panel = build_library_panel(shell.texts, shell.labels)
    goes = shell.form.actions.project
    projects = ProjectHandlers(context=shell.context, menu=panel.projects, filter=panel.project, goes=goes, message=shell.message)
    return LibraryHandlers(context=shell.context, panel=panel, message=shell.message, projects=projects)


LIBRARY = View(key="library", title="view_library", build=build_library)
