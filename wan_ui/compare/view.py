"""The view that compares up to four videos: one setting varied, a grid of two settings, or videos of the library.

Element ids: `compare-what`, `compare-values`, `compare-presets`, `compare-also`, `compare-also-values`, `compare-start`,
`compare`.
"""

from typing import Any

import gradio as gr

from wan_ui.compare.handlers import CompareHandlers, ComparePanel, also_choices, what_choices
from wan_ui.compare.html import MOST, CompareContent, compare_html
from wan_ui.compare.route import compare_route
from wan_ui.gateway.body_limit import LONGEST_TEXT
from wan_ui.services.presets import preset_choices
from wan_ui.view import FORM, Shell, View


def build_compare(shell: Shell) -> CompareHandlers:
    texts, labels = shell.texts, shell.labels
    choices = preset_choices("t2v", shell.context.preset_filter()).dropdown_choices(texts.language)
    setting: dict[str, Any] = dict(filterable=False, min_width=140, scale=2)
    field: dict[str, Any] = dict(label=labels.compare_values, placeholder=labels.compare_hint, max_length=LONGEST_TEXT)
    field |= dict(min_width=160, scale=3)
    with gr.Row(elem_id="compare-bar"):
        what = gr.Dropdown(what_choices(texts), value="seed", label=labels.compare_vary, elem_id="compare-what", **setting)
        values = gr.Textbox(elem_id="compare-values", **field)
        presets = gr.Dropdown(
            choices,
            value=[],
            multiselect=True,
            max_choices=MOST,
            label=labels.compare_presets,
            elem_id="compare-presets",
            visible=False,
            min_width=160,
            scale=3,
        )
        also = gr.Dropdown(also_choices(texts), value="", label=labels.compare_also, elem_id="compare-also", **setting)
        also_values = gr.Textbox(elem_id="compare-also-values", visible=False, **field)
        start = gr.Button(labels.compare_start, variant="primary", elem_id="compare-start", min_width=120, scale=1)
    panel = ComparePanel(
        what=what,
        values=values,
        presets=presets,
        also=also,
        also_values=also_values,
        start=start,
        view=gr.HTML(compare_html(CompareContent(), texts), elem_id="compare", apply_default_css=False),
        shown=gr.State(""),
        chosen=gr.State([]),
    )
    return CompareHandlers(context=shell.context, form=shell.form, panel=panel, message=shell.message)


COMPARE = View(
    key="compare",
    title="view_compare",
    build=build_compare,
    beside=(FORM,),
    routes=lambda context: [compare_route(context.engine, context.access)],
    rules={"/studio/compare/{comparison_id}.mp4": "visitor"},
)
