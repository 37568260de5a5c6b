"""The machine: devices, memory, model, compiled sizes, disk, versions, errors. Element id: `system`.

It is drawn when it comes into view and every few seconds while it stays there, not at every tick of every page.
"""

import gradio as gr


def build_system_panel() -> gr.HTML:
    """Builds the panel, empty."""
    return gr.HTML("", elem_id="system", apply_default_css=False)
