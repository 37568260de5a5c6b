"""Builds the queue's panel. Element id: `queue`."""

import gradio as gr

from wan_ui.queue.html import Queue, queue_html
from wan_ui.words.english import Texts


def build_queue(texts: Texts) -> gr.HTML:
    """The queue, empty; `render` gives it its place."""
    return gr.HTML(queue_html(Queue(), texts), elem_id="queue", apply_default_css=False, render=False)
