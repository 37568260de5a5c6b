"""The stage: a large view of the running or last video, with its progress, its numbers and its buttons.

Element ids: `stage`, inside it `download`; the phase is the attribute `data-phase` of `.stage`, the job `data-job`.
"""

from dataclasses import dataclass

import gradio as gr

from wan_ui.components.events import start_script
from wan_ui.components.progress import StageView
from wan_ui.i18n.english import Texts
from wan_ui.stage.html import stage_html


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The components that show the job on the stage. `status` is the worker status in the header."""

    view: gr.HTML
    job_id: gr.State
    queue: gr.HTML
    status: gr.HTML


def build_stage(queue: gr.HTML, status: gr.HTML, texts: Texts) -> Stage:
    """Build the stage without a video. The caller places its view on the page with the view's method `render`."""
    html = stage_html(StageView(), None, texts)
    view = gr.HTML(html, js_on_load=start_script("stage", "keep_seed"), elem_id="stage", apply_default_css=False, render=False)
    return Stage(view=view, job_id=gr.State(None), queue=queue, status=status)
