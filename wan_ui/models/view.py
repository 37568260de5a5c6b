"""The view of the models as cards: what is here, what each needs, and how it is fetched. Element id: `models`, each card's
model in `data-model`. It is drawn when it comes into view and every few seconds while it stays there, each second while
something is downloaded."""

import gradio as gr

from wan_ui.models.handlers import ModelsHandlers
from wan_ui.view import Shell, View


def build_models(shell: Shell) -> ModelsHandlers:
    """The panel, empty, with its handlers."""
    panel = gr.HTML("", elem_id="models", apply_default_css=False)
    return ModelsHandlers(context=shell.context, form=shell.form, panel=panel, message=shell.message)


MODELS = View(key="models", title="view_models", build=build_models)
