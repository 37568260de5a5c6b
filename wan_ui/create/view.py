"""The view in which videos are generated: the form, and the stage beside it."""

from wan_ui.stage.handlers import StageHandlers
from wan_ui.view import FORM, Shell, View


def build_create(shell: Shell) -> StageHandlers:
    """Place the stage on the page, and the view of instant drafts over the stage."""
    shell.stage.panel.view.render()
    shell.form.prompt.instant.view.render()
    return shell.stage


CREATE = View(key="create", title="view_create", build=build_create, beside=(FORM,), on_phone=(FORM,))
