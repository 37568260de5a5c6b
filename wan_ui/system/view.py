"""The view of the machine: devices, memory, model, compiled sizes, disk, versions, errors. Element id: `system`. It is drawn
when it comes into view and every few seconds while it stays there, not at every tick of every page."""

import gradio as gr

from wan_ui.system.handlers import SystemHandlers
from wan_ui.view import Shell, View


def build_system(shell: Shell) -> SystemHandlers:
    """The panel, empty, with its handlers."""
    return SystemHandlers(
        context=shell.context, panel=gr.HTML("", elem_id="system", apply_default_css=False), message=shell.message
    )


SYSTEM = View(key="system", title="view_system", build=build_system)
