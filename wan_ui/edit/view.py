"""The view in which a clip is made anew: what is asked for, and beside it the stage."""

from wan_ui.door.rules import Rules
from wan_ui.edit.handlers import EditHandlers
from wan_ui.edit.panel import build_edit_panel
from wan_ui.edit.routes import edit_routes
from wan_ui.view import Shell, View


def build_edit(shell: Shell) -> EditHandlers:
    """The panel with its handlers."""
    panel = build_edit_panel(shell.desk, shell.texts)
    return EditHandlers(desk=shell.desk, panel=panel, stage=shell.stage, message=shell.message)


RULES: Rules = {
    "/studio/edit": "login",
    "/studio/edit/clip": "login",
    "/studio/edit/estimate": "login",
    "/studio/edit/mask": "login",
    "/studio/edit/picture": "login",
}
EDIT = View(
    key="edit",
    title="view_edit",
    build=build_edit,
    beside=("create",),
    on_phone=("create",),
    routes=edit_routes,
    rules=RULES,
)
