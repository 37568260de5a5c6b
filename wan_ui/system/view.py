"""The system view: devices, memory, model, compiled sizes, disk, versions, errors.

Element id: `system`. The view is rendered when it opens and every few seconds while it is open.
"""

import gradio as gr

from wan_ui.system.handlers import SystemHandlers
from wan_ui.view import Shell, View


def build_system(shell: Shell) -> SystemHandlers:
    """Build the empty panel with its handlers."""
    return SystemHandlers(
        context=shell.context, panel=gr.HTML("", elem_id="system", apply_default_css=False), message=shell.message
    )


SYSTEM = View(key="system", title="view_system", build=build_system)
