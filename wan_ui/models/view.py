"""The models view: a card per model with its sizes, its memory and its download.

Element id: `models`. `data-model` is the model of a card. The view is rendered when it opens and every few seconds while it is
open, every second during a download.
"""

import gradio as gr

from wan_ui.models.handlers import ModelsHandlers
from wan_ui.view import Shell, View


def build_models(shell: Shell) -> ModelsHandlers:
    """Build the empty panel with its handlers."""
    panel = gr.HTML("", elem_id="models", apply_default_css=False)
    return ModelsHandlers(context=shell.context, form=shell.form, panel=panel, message=shell.message)


MODELS = View(key="models", title="view_models", build=build_models)
