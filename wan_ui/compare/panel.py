"""Up to four settings side by side: one thing of the form is varied, or videos of the library are chosen.

Element ids: `compare-what`, `compare-values`, `compare-presets`, `compare-start`, `compare`.
"""

import secrets
from dataclasses import dataclass
from typing import Any

import gradio as gr

from backend.contract.request import SEED_LIMIT, GenerationRequest, find_preset
from backend.errors import RequestError
from presets import Preset
from wan_ui.compare.html import MOST, Side, compare_html
from wan_ui.desk.body_limit import LONGEST_TEXT
from wan_ui.desk.presets import CanRun, preset_choices
from wan_ui.words.english import Texts


@dataclass(frozen=True, kw_only=True)
class ComparePanel:
    """The panel's components; `shown` is the id of the comparison on view, `chosen` the jobs picked so far."""

    what: gr.Dropdown
    values: gr.Textbox
    presets: gr.Dropdown
    start: gr.Button
    view: gr.HTML
    shown: gr.State
    chosen: gr.State

    @property
    def inputs(self) -> set[gr.Component]:
        return {self.what, self.values, self.presets}


def build_compare_panel(texts: Texts, labels: Texts, can_run: CanRun) -> ComparePanel:
    """Lays the panel out, with nothing to compare."""
    choices = preset_choices("t2v", can_run).dropdown(texts.language)
    with gr.Row(elem_id="compare-bar"):
        what = gr.Dropdown(
            what_choices(texts),
            value="seed",
            label=labels.compare_vary,
            elem_id="compare-what",
            filterable=False,
            min_width=140,
            scale=2,
        )
        values = gr.Textbox(
            label=labels.compare_values,
            placeholder=labels.compare_hint,
            elem_id="compare-values",
            max_length=LONGEST_TEXT,
            min_width=160,
            scale=3,
        )
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
        start = gr.Button(labels.compare_start, variant="primary", elem_id="compare-start", min_width=120, scale=1)
    view = gr.HTML(compare_html(Side(), texts), elem_id="compare", apply_default_css=False)
    return ComparePanel(
        what=what, values=values, presets=presets, start=start, view=view, shown=gr.State(""), chosen=gr.State([])
    )


def what_choices(texts: Texts) -> list[tuple[str, str]]:
    """What can be varied, for choice."""
    return [(name, key) for key, name in texts.compare_what]


def variations(base: GenerationRequest, what: str, text: str, presets: list[str]) -> list[GenerationRequest]:
    """The requests to compare: the base with one thing varied. Raises: RequestError."""
    match what:
        case "seed":
            made = [base.changed(seed=seed) for seed in _seeds(text)]
        case "steps":
            made = [base.changed(steps=steps) for steps in _whole(text, what)]
        case "guidance":
            made = [base.changed(guidance=(value,) * len(base.guidance)) for value in _numbers(text, what)]
        case "flow_shift":
            made = [base.changed(flow_shift=value) for value in _numbers(text, what)]
        case "preset":
            made = [_with_preset(base, find_preset(name)) for name in presets]
        case "loras":
            made = [base, base.changed(loras=())] if base.loras else []
        case _:
            made = []
    unique = list(dict.fromkeys(made))
    if not 2 <= len(unique) <= MOST:
        raise RequestError(f"compare has {len(unique)} different settings and", f"must have 2 to {MOST}", _advice(what))
    return unique


def _advice(what: str) -> str:
    if what == "loras":
        return "name a LoRA in More settings"
    return "choose 2 to 4 models" if what == "preset" else "give 2 to 4 values that differ, such as 8, 20, 40"


def _seeds(text: str) -> list[int]:
    return _whole(text, "seed") if text.strip() else [secrets.randbelow(SEED_LIMIT) for _ in range(MOST)]


def _whole(text: str, what: str) -> list[int]:
    values = _numbers(text, what)
    for value in values:
        if value != int(value):
            raise RequestError(f"{what}={value:g}", "must be a whole number", "such as 8, 20, 40")
    return [int(value) for value in values]


def _numbers(text: str, what: str) -> list[float]:
    words = text.replace(";", ",").replace(" ", ",").split(",")
    try:
        return [_finite(word) for word in words if word]
    except ValueError:
        raise RequestError(f"{what}={text[:40]!r}", "must be numbers with commas between them", "such as 8, 20, 40") from None


def _finite(word: str) -> float:
    value = float(word)
    if value != value or abs(value) == float("inf"):
        raise ValueError(word)
    return value


def _with_preset(base: GenerationRequest, preset: Preset) -> GenerationRequest:
    """The preset's own settings with the base's prompt, seed and pictures; its size too, as far as the preset allows."""
    same: dict[str, Any] = {name: getattr(base, name) for name in ("prompt", "seed", "image", "image_focus")}
    size = {"width": base.width, "height": base.height, "num_frames": base.num_frames}
    try:
        return GenerationRequest.from_preset(preset, **same, **size)
    except RequestError:
        return GenerationRequest.from_preset(preset, **same)
