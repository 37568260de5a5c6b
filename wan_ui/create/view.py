"""The view in which videos are generated: the form, and the stage beside it."""

from wan_ui.stage.handlers import StageHandlers
from wan_ui.view import FORM, Shell, View


def build_create(shell: Shell) -> StageHandlers:
    """Put the stage into the view, and the view of instant drafts over it. Both were built earlier, because other views show jobs
    on the stage."""
    shell.stage.panel.view.render()
    shell.form.prompt.instant.view.render()
    return shell.stage


CREATE = View(key="create", title="view_create", build=build_create, beside=(FORM,), on_phone=(FORM,))
