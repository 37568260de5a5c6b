"""Model, size, length and sampling. Offers the preset's values, and those of loaded settings.

`texts` are words for HTML, `labels` the same words as keys that Gradio translates in the browser.
Element ids: `preset`, `preset-note`, `resolution`, `length`, `steps`, `guidance`, `guidance-low`, `flow-shift`, `seed`,
`seed-random`, `guided-steps`, `nag`, `settings-note`, and inside `more`: `negative-prompt`, `fps`, `solver`, `guidance-start`,
`guidance-end`, `step-cache`, `context-windows`, `loras`.
"""

from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

from backend.contract.guided_steps import OFFERED, count_first
from backend.contract.request import GenerationRequest
from backend.contract.windows import window_frames
from presets import Preset
from wan_ui.desk.body_limit import LONGEST_TEXT
from wan_ui.desk.presets import PresetChoices
from wan_ui.form.loras import lora_lines
from wan_ui.parts.notes import build_note
from wan_ui.words.english import Texts

GUIDANCE_RANGE = (1.0, 12.0)
FLOW_SHIFT_RANGE = (1.0, 12.0)
MOST_NAG = 20.0  # offered


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
    guided_steps: gr.Slider
    nag: gr.Slider
    note: gr.HTML
    more: "MorePanel"

    def values(self, values: "Values", preset: Preset, texts: Texts) -> dict[gr.Component, Any]:
        """Gradio updates that show these values, and the preset's other choices."""
        given = settings_of(preset, texts, values)
        return {getattr(self, name, None) or getattr(self.more, name): gr.update(**update) for name, update in given.items()}

    @property
    def follows_preset(self) -> list[gr.Component]:
        """The components that change with the preset."""
        return [getattr(self, name, None) or getattr(self.more, name) for name in _FOLLOWS_PRESET]

    @property
    def estimated(self) -> list[gr.Component]:
        """The components that change how long a video takes."""
        return [self.preset, self.resolution, self.length, self.steps, self.guidance, self.guidance_low, self.more.guidance_end]

    @property
    def guided(self) -> list[gr.Component]:
        """What says how strong guidance is and on which steps."""
        return [self.guidance, self.guidance_low, self.more.guidance_start, self.more.guidance_end]


@dataclass(frozen=True, kw_only=True)
class MorePanel:
    """The settings that few people change, behind one line that opens."""

    negative_prompt: gr.Textbox
    fps: gr.Number
    solver: gr.Dropdown
    guidance_start: gr.Slider
    guidance_end: gr.Slider
    step_cache: gr.Slider
    context_windows: gr.Dropdown
    loras: gr.Textbox


@dataclass(frozen=True, kw_only=True)
class Values:
    """The values for the controls to show: a preset's own settings, or those of a request."""

    width: int
    height: int
    num_frames: int
    fps: int
    steps: int
    guidance: tuple[float, ...]
    flow_shift: float
    solver: str
    negative_prompt: str
    guidance_interval: tuple[float, float]
    nag: float
    step_cache: float
    loras: tuple
    context_windows: bool | None = None

    @classmethod
    def of(cls, source: Preset | GenerationRequest) -> "Values":
        """The values of the fields that presets and requests share; windows are left to a preset."""
        return cls(**{name: getattr(source, name, None) for name in cls.__dataclass_fields__})


_FOLLOWS_PRESET = (
    "resolution", "length", "steps", "guidance", "guidance_low", "flow_shift", "fps", "solver", "negative_prompt",
    "guidance_start", "guidance_end", "step_cache", "context_windows", "loras", "guided_steps",
    "nag",
)  # fmt: skip


def build_preset_picker(choices: PresetChoices, texts: Texts, labels: Texts) -> tuple[gr.Dropdown, gr.HTML]:
    """The model's dropdown and the line about those that are not here."""
    preset = choices.pick(None)
    with gr.Column(elem_id="model"):
        picker = gr.Dropdown(
            choices.dropdown(texts.language),
            value=preset.name if preset else None,
            label=labels.preset,
            elem_id="preset",
            filterable=False,
            info=None if preset else labels.presets_none,
        )
        note = gr.HTML(elsewhere_html(choices, texts), elem_id="preset-note")
    return picker, note


def build_settings_panel(choices: PresetChoices, preset: Preset, texts: Texts, labels: Texts) -> SettingsPanel:
    """Builds the panel, filled for this preset."""
    picker, preset_note = build_preset_picker(choices, texts, labels)
    given = settings_of(preset, texts)
    with gr.Row(elem_classes="pair"):
        resolution = gr.Dropdown(label=labels.resolution, elem_id="resolution", filterable=False, **given["resolution"])
        length = gr.Dropdown(label=labels.length, elem_id="length", filterable=False, **given["length"])
    with gr.Row(elem_classes="pair"):
        steps = gr.Slider(label=labels.steps, step=1, buttons=[], elem_id="steps", **given["steps"])
        flow_shift = gr.Slider(label=labels.flow_shift, step=0.1, buttons=[], elem_id="flow-shift", **given["flow_shift"])
    with gr.Row(elem_classes="pair"):
        guidance = gr.Slider(label=labels.guidance, step=0.1, buttons=[], elem_id="guidance", **given["guidance"])
        low = gr.Slider(label=labels.guidance_low, step=0.1, buttons=[], elem_id="guidance-low", **given["guidance_low"])
        with gr.Column(elem_classes="seed", min_width=120):
            seed = gr.Number(label=labels.seed, value=0, precision=0, elem_id="seed", min_width=120)
            is_random = gr.Checkbox(label=labels.seed_random, value=True, elem_id="seed-random", container=False)
    with gr.Row(elem_classes="pair"):
        guided_steps = gr.Slider(label=labels.guided_steps, step=1, buttons=[], elem_id="guided-steps", **given["guided_steps"])
        nag = gr.Slider(label=labels.nag, step=0.5, buttons=[], elem_id="nag", **given["nag"])
    note = build_note("settings-note")
    return SettingsPanel(
        preset=picker,
        preset_note=preset_note,
        resolution=resolution,
        length=length,
        steps=steps,
        guidance=guidance,
        guidance_low=low,
        flow_shift=flow_shift,
        seed=seed,
        is_seed_random=is_random,
        guided_steps=guided_steps,
        nag=nag,
        note=note,
        more=_build_more(given, labels),
    )


def _build_more(given: dict[str, dict[str, Any]], labels: Texts) -> MorePanel:
    with gr.Accordion(labels.more, open=False, elem_id="more"):
        negative = gr.Textbox(
            label=labels.negative_prompt,
            placeholder=labels.negative_placeholder,
            lines=1,
            max_lines=3,
            max_length=LONGEST_TEXT,
            elem_id="negative-prompt",
            **given["negative_prompt"],
        )
        with gr.Row(elem_classes="pair"):
            fps = gr.Number(label=labels.fps, precision=0, elem_id="fps", min_width=100, **given["fps"])
            solver = gr.Dropdown(label=labels.solver, elem_id="solver", filterable=False, min_width=100, **given["solver"])
        with gr.Row(elem_classes="pair"):
            start = gr.Slider(label=labels.guidance_start, buttons=[], elem_id="guidance-start", **given["guidance_start"])
            end = gr.Slider(label=labels.guidance_end, buttons=[], elem_id="guidance-end", **given["guidance_end"])
        cache = gr.Slider(label=labels.step_cache, buttons=[], elem_id="step-cache", **given["step_cache"])
        windows = gr.Dropdown(
            label=labels.context_windows, elem_id="context-windows", filterable=False, **given["context_windows"]
        )
        loras = gr.Textbox(
            label=labels.loras,
            info=labels.loras_info,
            lines=1,
            max_lines=4,
            max_length=LONGEST_TEXT,
            elem_id="loras",
            **given["loras"],
        )
    return MorePanel(
        negative_prompt=negative,
        fps=fps,
        solver=solver,
        guidance_start=start,
        guidance_end=end,
        step_cache=cache,
        context_windows=windows,
        loras=loras,
    )


def settings_of(preset: Preset, texts: Texts, values: Values | None = None) -> dict[str, dict[str, Any]]:
    """The choices and the value of each control, as Gradio arguments by the panel's field.

    Shows `values`, or else the preset's own; a value that the preset does not offer is added to the choices.
    """
    shown = values or Values.of(preset)
    low = shown.guidance[1] if len(shown.guidance) > 1 else shown.guidance[0]
    first = count_first(shown.guidance, shown.guidance_interval, shown.steps) or 0
    return {
        "resolution": _sizes(preset, (shown.width, shown.height)),
        "length": _lengths(preset, shown.num_frames, texts),
        "steps": dict(minimum=1, maximum=max(preset.max_steps, shown.steps), value=shown.steps),
        "guidance": _range(GUIDANCE_RANGE, shown.guidance[0]) | dict(visible=preset.max_guidance > 1),
        "guidance_low": _range(GUIDANCE_RANGE, low) | dict(visible=preset.num_experts > 1),
        "flow_shift": _range(FLOW_SHIFT_RANGE, shown.flow_shift),
        "fps": dict(value=shown.fps),
        "solver": dict(choices=list(dict.fromkeys([*preset.solvers, shown.solver])), value=shown.solver),
        "negative_prompt": dict(value=shown.negative_prompt),
        "guidance_start": dict(minimum=0, maximum=100, step=1, value=round(100 * shown.guidance_interval[0], 6)),
        "guidance_end": dict(minimum=0, maximum=100, step=1, value=round(100 * shown.guidance_interval[1], 6)),
        "step_cache": dict(minimum=0, maximum=max(0.3, shown.step_cache), step=0.01, value=shown.step_cache),
        "context_windows": _windows(preset, shown.context_windows, texts),
        "loras": dict(value=lora_lines(shown.loras)),
        "guided_steps": dict(minimum=0, maximum=max(*OFFERED, first), value=first, visible=preset.first_guidance is not None),
        "nag": dict(minimum=0, maximum=max(MOST_NAG, shown.nag), value=shown.nag, visible=preset.takes_nag),
    }


def preset_updates(preset: Preset, texts: Texts) -> list[dict[str, Any]]:
    """Gradio updates for `SettingsPanel.follows_preset` when this preset is chosen."""
    given = settings_of(preset, texts)
    return [gr.update(**given[name]) for name in _FOLLOWS_PRESET]


def length_words(frames: int, fps: int, texts: Texts) -> str:
    """A video's length in words, the seconds before the frames."""
    return texts.length_choice.format(seconds=frames / fps, frames=frames)


def _sizes(preset: Preset, shown: tuple[int, int]) -> dict[str, Any]:
    sizes = list(dict.fromkeys([*preset.sizes, shown]))
    choices = [(f"{width} × {height}", f"{width}x{height}") for width, height in sizes]
    return dict(choices=choices, value=f"{shown[0]}x{shown[1]}")


def _lengths(preset: Preset, shown: int, texts: Texts) -> dict[str, Any]:
    counts = sorted({*preset.frame_counts, shown})
    return dict(choices=[(_length_choice(preset, count, texts), count) for count in counts], value=shown)


def _length_choice(preset: Preset, frames: int, texts: Texts) -> str:
    """A length in words, which say whether such a video is denoised in windows."""
    words = length_words(frames, preset.fps, texts)
    return texts.length_in_windows.format(length=words) if window_frames(preset, frames, None) else words


def _windows(preset: Preset, shown: bool | None, texts: Texts) -> dict[str, Any]:
    choices = [(texts.windows_by_preset, ""), (texts.windows_on, "on"), (texts.windows_off, "off")]
    value = "" if shown is None else "on" if shown else "off"
    return dict(choices=choices, value=value, visible=preset.trained_frames is not None)


def _range(usual: tuple[float, float], shown: float) -> dict[str, Any]:
    return dict(minimum=min(usual[0], shown), maximum=max(usual[1], shown), value=shown)


def elsewhere_html(choices: PresetChoices, texts: Texts) -> str:
    """The presets that cannot run here, behind one small line that opens."""
    if not choices.elsewhere:
        return ""
    rows = "".join(_elsewhere(preset, texts) for preset in choices.elsewhere)
    where = f'<li><button type="button" data-view="models">{escape(texts.presets_where)}</button></li>'
    summary = escape(texts.presets_elsewhere.format(count=len(choices.elsewhere)))
    return f'<details class="elsewhere"><summary>{summary}</summary><ul>{where}{rows}</ul></details>'


def _elsewhere(preset: Preset, texts: Texts) -> str:
    words = preset.words(texts.language)
    return (
        f"<li><b>{escape(words.title)}</b><span>{escape(words.description)}</span>"
        f"<span>{escape(texts.preset_missing)}</span></li>"
    )
