"""The settings of the form as Gradio components: model, size, length and sampling. `controls.py` describes them.

Functions take `Texts` in two forms: `texts` has texts for HTML, `labels` has keys that Gradio translates in the browser.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

from backend.schemas.request import GenerationRequest
from presets import Preset
from wan_ui.components.descriptions import DESCRIBED, describe
from wan_ui.components.field_errors import build_note
from wan_ui.form.controls import Control, describe_controls
from wan_ui.gateway.body_limit import LONGEST_TEXT
from wan_ui.i18n.english import Texts
from wan_ui.services.presets import PresetChoices

_ROWS = (("resolution", "length"), ("steps", "flow_shift"), ("guidance", "guidance_low"), ("guided_steps", "nag"))
_MORE = (("negative_prompt",), ("fps", "solver"), ("guidance_start", "guidance_end"))
_KINDS = {"choice": gr.Dropdown, "slider": gr.Slider, "number": gr.Number, "text": gr.Textbox, "check": gr.Checkbox}


Component = gr.Checkbox | gr.Dropdown | gr.Number | gr.Slider | gr.Textbox


@dataclass(frozen=True, kw_only=True)
class SettingsPanel:
    """The panel's components. `controls` change with the preset; their keys are the keys of `control_updates`."""

    preset: gr.Dropdown
    preset_note: gr.HTML
    seed: gr.Number
    is_seed_random: gr.Checkbox
    note: gr.HTML
    controls: dict[str, Component]

    @property
    def follows_preset(self) -> list[Component]:
        return list(self.controls.values())

    @property
    def estimate_inputs(self) -> list[Component]:
        """Return the components that change the expected time."""
        return [self.preset, *self.controls.values()]

    @property
    def guidance_controls(self) -> list[Component]:
        """Return the controls for the strength of guidance and for the steps that use it."""
        return [self.controls[name] for name in ("guidance", "guidance_low", "guidance_start", "guidance_end")]


def build_preset_picker(choices: PresetChoices, texts: Texts, labels: Texts) -> tuple[gr.Dropdown, gr.HTML]:
    """Build the model's dropdown and the list of presets that cannot run on this machine."""
    preset = choices.pick_preset(None)
    with gr.Column(elem_id="model"):
        picker = gr.Dropdown(
            choices.dropdown_choices(texts.language),
            value=preset.name if preset else None,
            label=labels.preset,
            elem_id="preset",
            filterable=False,
            info=describe("preset", labels) if preset else labels.presets_none,
            elem_classes=DESCRIBED if preset else None,
        )
        note = gr.HTML(unavailable_presets_html(choices, texts), elem_id="preset-note")
    return picker, note


def build_settings_panel(choices: PresetChoices, preset: Preset, texts: Texts, labels: Texts) -> SettingsPanel:
    picker, preset_note = build_preset_picker(choices, texts, labels)
    given = describe_controls(preset, texts)
    built: dict[str, Component] = {}
    seed = is_random = None
    for names in _ROWS:
        with gr.Row(elem_classes="pair"):
            built |= {name: _build_component(given[name], labels) for name in names}
            if "guidance" in names:
                with gr.Column(elem_classes="seed", min_width=120):
                    seed = gr.Number(
                        label=labels.seed,
                        info=describe("seed", labels),
                        value=0,
                        precision=0,
                        elem_id="seed",
                        elem_classes=DESCRIBED,
                        min_width=120,
                    )
                    is_random = gr.Checkbox(label=labels.seed_random, value=True, elem_id="seed-random", container=False)
    note = build_note("settings-note")
    placed = {name for names in (*_ROWS, *_MORE) for name in names}
    with gr.Accordion(labels.more, open=False, elem_id="more"):
        for names in (*_MORE, *((name,) for name in given if name not in placed)):
            with gr.Row(elem_classes="pair") if len(names) > 1 else nullcontext():
                built |= {name: _build_component(given[name], labels) for name in names}
    assert seed is not None and is_random is not None, "one of the rows has guidance"
    return SettingsPanel(
        preset=picker,
        preset_note=preset_note,
        seed=seed,
        is_seed_random=is_random,
        note=note,
        controls={name: built[name] for name in given},
    )


def _build_component(control: Control, labels: Texts) -> Component:
    kind, name = _KINDS[control.kind], control.name
    usual: dict[str, Any] = {
        gr.Slider: dict(buttons=[]),
        gr.Dropdown: dict(filterable=False),
        gr.Number: dict(precision=0 if control.is_whole else None, min_width=100),
        gr.Textbox: dict(lines=1, max_length=LONGEST_TEXT),
    }.get(kind, {})
    own: dict[str, Any] = {
        "solver": dict(min_width=100),
        "negative_prompt": dict(placeholder=labels.negative_placeholder, max_lines=3),
        "loras": dict(placeholder=labels.loras_placeholder, max_lines=4),
    }.get(name, {})
    words: dict[str, Any] = dict(label=getattr(labels, control.label), info=describe(name, labels))
    return kind(elem_id=name.replace("_", "-"), elem_classes=DESCRIBED, **words, **usual, **own, **_component_values(control))


def _component_values(control: Control) -> dict[str, Any]:
    """Return the Gradio arguments that change with the preset."""
    values: dict[str, Any] = dict(value=control.value, visible=control.is_shown)
    if control.kind == "choice":
        values["choices"] = [*control.choices]
    if control.limits is not None:
        values |= dict(zip(("minimum", "maximum", "step"), control.limits, strict=True))
    return values


def control_updates(preset: Preset, texts: Texts, values: GenerationRequest | None = None) -> dict[str, dict[str, Any]]:
    """Return the Gradio arguments of each control by its name, see `describe_controls`."""
    return {name: _component_values(control) for name, control in describe_controls(preset, texts, values).items()}


def preset_updates(preset: Preset, texts: Texts) -> list[dict[str, object]]:
    """Return Gradio updates of `SettingsPanel.follows_preset` for a newly chosen preset."""
    return [gr.update(**given) for given in control_updates(preset, texts).values()]


def unavailable_presets_html(choices: PresetChoices, texts: Texts) -> str:
    """Render the presets that cannot run on this machine, as a list that opens when its heading is pressed."""
    if not choices.unavailable:
        return ""
    missing, named = escape(texts.preset_missing), [preset.words(texts.language) for preset in choices.unavailable]
    rows = "".join(
        f"<li><b>{escape(one.title)}</b><span>{escape(one.description)}</span><span>{missing}</span></li>" for one in named
    )
    where = f'<li><button type="button" data-view="models">{escape(texts.presets_where)}</button></li>'
    summary = escape(texts.presets_elsewhere.format(count=len(choices.unavailable)))
    return f'<details class="elsewhere"><summary>{summary}</summary><ul>{where}{rows}</ul></details>'
