"""Model, size, length and sampling. Offers only what the preset allows.

Element ids: `preset`, `preset-note`, `resolution`, `length`, `steps`, `guidance`, `guidance-low`, `flow-shift`, `seed`,
`seed-random`, `settings-note`.
"""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from presets import Preset
from wan_ui.notes import build_note
from wan_ui.preset_choices import PresetChoices, elsewhere_html
from wan_ui.text import Texts

GUIDANCE_RANGE = (1.0, 12.0)
FLOW_SHIFT_RANGE = (1.0, 12.0)


@dataclass(frozen=True, kw_only=True)
class SettingsPanel:
    """The panel's components."""

    preset: gr.Dropdown
    preset_note: gr.HTML
    resolution: gr.Dropdown
    length: gr.Dropdown
    steps: gr.Slider
    guidance: gr.Slider
    guidance_low: gr.Slider
    flow_shift: gr.Slider
    seed: gr.Number
    is_seed_random: gr.Checkbox
    note: gr.HTML

    @property
    def follows_preset(self) -> list[gr.Component]:
        """What changes with the preset, in the order of `preset_updates`."""
        return [self.resolution, self.length, self.steps, self.guidance, self.guidance_low, self.flow_shift]


def build_preset_picker(choices: PresetChoices, texts: Texts) -> tuple[gr.Dropdown, gr.HTML]:
    """The model's dropdown and the line about those that are not here."""
    preset = choices.pick(None)
    with gr.Column(elem_id="model"):
        picker = gr.Dropdown(
            choices.dropdown(), value=preset.name if preset else None, label=texts.preset, elem_id="preset",
            filterable=False, info=None if preset else texts.presets_none,
        )  # fmt: skip
        note = gr.HTML(elsewhere_html(choices, texts), elem_id="preset-note")
    return picker, note


def build_settings_panel(choices: PresetChoices, preset: Preset, texts: Texts) -> SettingsPanel:
    """Lays the panel out, filled for this preset."""
    picker, preset_note = build_preset_picker(choices, texts)
    given = settings_of(preset, texts)
    with gr.Row(elem_classes="pair"):
        resolution = gr.Dropdown(label=texts.resolution, elem_id="resolution", filterable=False, **given["resolution"])
        length = gr.Dropdown(label=texts.length, elem_id="length", filterable=False, **given["length"])
    with gr.Row(elem_classes="pair"):
        steps = gr.Slider(label=texts.steps, step=1, buttons=[], elem_id="steps", **given["steps"])
        flow_shift = gr.Slider(label=texts.flow_shift, step=0.1, buttons=[], elem_id="flow-shift", **given["flow_shift"])
    with gr.Row(elem_classes="pair"):
        guidance = gr.Slider(label=texts.guidance, step=0.1, buttons=[], elem_id="guidance", **given["guidance"])
        low = gr.Slider(label=texts.guidance_low, step=0.1, buttons=[], elem_id="guidance-low", **given["guidance_low"])
        with gr.Column(elem_classes="seed", min_width=120):
            seed = gr.Number(label=texts.seed, value=0, precision=0, elem_id="seed", min_width=120)
            is_random = gr.Checkbox(label=texts.seed_random, value=True, elem_id="seed-random", container=False)
    note = build_note("settings-note")
    return SettingsPanel(
        preset=picker, preset_note=preset_note, resolution=resolution, length=length, steps=steps, guidance=guidance,
        guidance_low=low, flow_shift=flow_shift, seed=seed, is_seed_random=is_random, note=note,
    )  # fmt: skip


def settings_of(preset: Preset, texts: Texts) -> dict[str, dict[str, Any]]:
    """What each control offers and starts with for this preset, as Gradio arguments by the panel's field."""
    sizes = [(f"{width} × {height}", f"{width}x{height}") for width, height in preset.sizes]
    lengths = [(length_words(count, preset.fps, texts), count) for count in preset.frame_counts]
    low = preset.guidance[1] if preset.num_experts > 1 else preset.guidance[0]
    least_guidance, most_guidance = GUIDANCE_RANGE
    least_shift, most_shift = FLOW_SHIFT_RANGE
    guidance = dict(minimum=least_guidance, maximum=most_guidance)
    return {
        "resolution": dict(choices=sizes, value=f"{preset.width}x{preset.height}"),
        "length": dict(choices=lengths, value=preset.num_frames),
        "steps": dict(minimum=1, maximum=preset.max_steps, value=preset.steps),
        "guidance": guidance | dict(value=preset.guidance[0]),
        "guidance_low": guidance | dict(value=low, visible=preset.num_experts > 1),
        "flow_shift": dict(minimum=least_shift, maximum=most_shift, value=preset.flow_shift),
    }


def preset_updates(preset: Preset, texts: Texts) -> list[dict[str, Any]]:
    """Gradio updates for `SettingsPanel.follows_preset` when this preset is chosen."""
    given = settings_of(preset, texts)
    order = ("resolution", "length", "steps", "guidance", "guidance_low", "flow_shift")
    return [gr.update(**given[name]) for name in order]


def length_words(frames: int, fps: int, texts: Texts) -> str:
    """A frame count as a person thinks of it: the seconds first."""
    return texts.length_choice.format(seconds=frames / fps, frames=frames)
