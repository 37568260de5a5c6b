"""The models as cards: what each needs, its download, its buttons. Element id: `models`, each card's model in `data-model`.

It is drawn when it comes into view and every few seconds while it stays there, each second while something is downloaded.
"""

import gradio as gr


def build_models_panel() -> gr.HTML:
    """Builds the panel, empty."""
    return gr.HTML("", elem_id="models", apply_default_css=False)
