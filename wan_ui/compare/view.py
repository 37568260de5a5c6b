"""The compare view: up to four videos side by side."""

from wan_ui.compare.handlers import CompareHandlers
from wan_ui.compare.panel import build_compare_panel
from wan_ui.compare.route import compare_route
from wan_ui.view import FORM, Shell, View


def build_compare(shell: Shell) -> CompareHandlers:
    """Build the panel with its handlers."""
    panel = build_compare_panel(shell.texts, shell.labels, shell.context.preset_filter())
    return CompareHandlers(context=shell.context, form=shell.form, panel=panel, message=shell.message)


COMPARE = View(
    key="compare",
    title="view_compare",
    build=build_compare,
    beside=(FORM,),
    routes=lambda context: [compare_route(context.engine, context.access)],
    rules={"/studio/compare/{comparison_id}.mp4": "visitor"},
)
