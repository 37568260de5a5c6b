"""The view in which videos are made: the form, and the stage beside it."""

from wan_ui.stage.handlers import StageHandlers
from wan_ui.view import FORM, Shell, View


def build_create(shell: Shell) -> StageHandlers:
    """Gives the stage its place; it exists already, because other views put jobs on it."""
    shell.stage.panel.view.render()
    return shell.stage


CREATE = View(key="create", title="view_create", build=build_create, beside=(FORM,), on_phone=(FORM,))
