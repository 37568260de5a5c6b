"""Build the queue's panel. Element id: `queue`."""

import gradio as gr

from wan_ui.components.events import start_script
from wan_ui.i18n.english import Texts
from wan_ui.queue.html import Queue, queue_html


def build_queue(texts: Texts) -> gr.HTML:
    """Build the empty queue. The caller calls `render` of the component to place the queue on the page."""
    html, script = queue_html(Queue(), texts), start_script("queue")
    return gr.HTML(html, js_on_load=script, elem_id="queue", apply_default_css=False, render=False)
