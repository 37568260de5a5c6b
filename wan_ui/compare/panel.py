"""The compare panel: up to four videos with one setting varied, a grid of two settings, or videos of the library.

Element ids: `compare-what`, `compare-values`, `compare-presets`, `compare-also`, `compare-also-values`, `compare-start`,
`compare`.
"""

from dataclasses import dataclass

import gradio as gr

from wan_ui.compare.html import MOST, CompareContent, compare_html
from wan_ui.gateway.body_limit import LONGEST_TEXT
from wan_ui.i18n.english import Texts
from wan_ui.services.presets import CanRun, preset_choices


@dataclass(frozen=True, kw_only=True)
class ComparePanel:
    """The panel's components. `shown` is the id of the current comparison. `chosen` has the ids of the selected jobs."""

    what: gr.Dropdown
    values: gr.Textbox
    presets: gr.Dropdown
    also: gr.Dropdown
    also_values: gr.Textbox
    start: gr.Button
    view: gr.HTML
    shown: gr.State
    chosen: gr.State

    @property
    def inputs(self) -> set[gr.blocks.Block]:
        return {self.what, self.values, self.presets, self.also, self.also_values}


def build_compare_panel(texts: Texts, labels: Texts, can_run: CanRun) -> ComparePanel:
    """Build the panel, at first without videos."""
    choices = preset_choices("t2v", can_run).dropdown_choices(texts.language)
    with gr.Row(elem_id="compare-bar"):
        what = _setting_dropdown(what_choices(texts), "seed", labels.compare_vary, "compare-what")
        values = _values_box(labels, "compare-values")
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
        also = _setting_dropdown(also_choices(texts), "", labels.compare_also, "compare-also")
        also_values = _values_box(labels, "compare-also-values", visible=False)
        start = gr.Button(labels.compare_start, variant="primary", elem_id="compare-start", min_width=120, scale=1)
    view = gr.HTML(compare_html(CompareContent(), texts), elem_id="compare", apply_default_css=False)
    return ComparePanel(
        what=what,
        values=values,
        presets=presets,
        also=also,
        also_values=also_values,
        start=start,
        view=view,
        shown=gr.State(""),
        chosen=gr.State([]),
    )


def _setting_dropdown(choices: list[tuple[str, str]], value: str, label: str, elem_id: str) -> gr.Dropdown:
    """Return a dropdown for the setting that varies between the columns, or between the rows."""
    return gr.Dropdown(choices, value=value, label=label, elem_id=elem_id, filterable=False, min_width=140, scale=2)


def _values_box(labels: Texts, elem_id: str, *, visible: bool = True) -> gr.Textbox:
    """Return the text field for the values of a setting."""
    return gr.Textbox(
        label=labels.compare_values,
        placeholder=labels.compare_hint,
        max_length=LONGEST_TEXT,
        elem_id=elem_id,
        visible=visible,
        min_width=160,
        scale=3,
    )


def also_choices(texts: Texts) -> list[tuple[str, str]]:
    """Return the choices for the second varied setting of a grid. The first choice means no second setting."""
    return [(texts.compare_also_none, ""), *((name, key) for key, name in texts.compare_what if key not in ("preset", "loras"))]


def what_choices(texts: Texts) -> list[tuple[str, str]]:
    """Return the choices for the varied setting."""
    return [(name, key) for key, name in texts.compare_what]
