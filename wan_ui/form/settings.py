"""Model, size, length and sampling. The controls offer the preset's choices and the values of loaded settings.

`texts` are texts for HTML. `labels` are keys of the same texts, which Gradio translates in the browser.

Element ids: `preset`, `preset-note`, `resolution`, `length`, `steps`, `guidance`, `guidance-low`, `flow-shift`, `seed`,
`seed-random`, `guided-steps`, `nag`, `settings-note`, and inside `more`: `negative-prompt`, `fps`, `solver`, `guidance-start`,
`guidance-end`, `progressive`, `step-cache`, `mag-cache`, `context-windows`, `loras`.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from html import escape
from typing import Any

import gradio as gr

from backend.schemas.guidance_steps import OFFERED, count_guided_steps
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import FIELDS, SETTINGS, Setting, window_frames
from presets import Preset
from wan_ui.components.descriptions import DESCRIBED, describe
from wan_ui.components.field_errors import build_note
from wan_ui.form.loras import format_loras
from wan_ui.gateway.body_limit import LONGEST_TEXT
from wan_ui.i18n.english import Texts
from wan_ui.services.presets import PresetChoices

GUIDANCE_RANGE = (1.0, 12.0)
PLAIN = tuple(one for one in FIELDS if one.label)
"""The settings whose controls are built from the settings table alone. This module defines the other controls."""

_ROWS = (("resolution", "length"), ("steps", "flow_shift"), ("guidance", "guidance_low"), ("guided_steps", "nag"))
_MORE = (("negative_prompt",), ("fps", "solver"), ("guidance_start", "guidance_end"))
_LAST = "loras"  # the last control; controls that are missing in _ROWS and _MORE are placed before it
_KINDS = {"resolution": gr.Dropdown, "length": gr.Dropdown, "context_windows": gr.Dropdown, "loras": gr.Textbox}


Control = gr.Checkbox | gr.Dropdown | gr.Number | gr.Slider | gr.Textbox


@dataclass(frozen=True, kw_only=True)
class SettingsPanel:
    """The panel's components. `controls` change with the preset; their keys are the keys of `control_updates`."""

    preset: gr.Dropdown
    preset_note: gr.HTML
    seed: gr.Number
    is_seed_random: gr.Checkbox
    note: gr.HTML
    controls: dict[str, Control]

    def show_values(self, shown: GenerationRequest, preset: Preset, texts: Texts) -> dict[gr.blocks.Block, Any]:
        """Return Gradio updates that show the request's values and the preset's other choices."""
        return {self.controls[name]: gr.update(**update) for name, update in control_updates(preset, texts, shown).items()}

    @property
    def follows_preset(self) -> list[Control]:
        """Return the components that change with the preset."""
        return list(self.controls.values())

    @property
    def estimate_inputs(self) -> list[Control]:
        """Return the components that change the expected time."""
        names = ["resolution", "length", "steps", "guidance", "guidance_low", "guidance_end", "mag_cache", "progressive"]
        names += ["upscale", "upscaler"]
        return [self.preset, *(self.controls[name] for name in names)]

    @property
    def guidance_controls(self) -> list[Control]:
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
    """Build the panel for this preset."""
    picker, preset_note = build_preset_picker(choices, texts, labels)
    given = control_updates(preset, texts)
    built: dict[str, Control] = {}
    seed = is_random = None
    for names in _ROWS:
        with gr.Row(elem_classes="pair"):
            built |= {name: _build_control(name, labels, given[name]) for name in names}
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
    with gr.Accordion(labels.more, open=False, elem_id="more"):
        for names in (*_MORE, *_unplaced_controls(given), (_LAST,)):
            with gr.Row(elem_classes="pair") if len(names) > 1 else nullcontext():
                built |= {name: _build_control(name, labels, given[name]) for name in names}
    assert seed is not None and is_random is not None, "one of the rows has guidance"
    return SettingsPanel(
        preset=picker,
        preset_note=preset_note,
        seed=seed,
        is_seed_random=is_random,
        note=note,
        controls={name: built[name] for name in given},
    )


def _unplaced_controls(given: dict[str, dict[str, Any]]) -> Iterator[tuple[str]]:
    """Yield the names of the controls that are missing in `_ROWS` and `_MORE`."""
    placed = {name for names in (*_ROWS, *_MORE) for name in names} | {_LAST}
    return ((name,) for name in given if name not in placed)


def _build_control(name: str, labels: Texts, given: dict[str, Any]) -> Control:
    setting = SETTINGS.get(name, Setting())
    kind = _KINDS.get(name) or (gr.Slider if "minimum" in given else _control_class(setting))
    usual: dict[str, Any] = {
        gr.Slider: dict(buttons=[]),
        gr.Dropdown: dict(filterable=False),
        gr.Number: dict(precision=0 if setting.type is int else None, min_width=100),
        gr.Textbox: dict(lines=1, max_length=LONGEST_TEXT),
    }.get(kind, {})
    own: dict[str, Any] = {
        "solver": dict(min_width=100),
        "negative_prompt": dict(placeholder=labels.negative_placeholder, max_lines=3),
        "loras": dict(placeholder=labels.loras_placeholder, max_lines=4),
    }.get(name, {})
    words: dict[str, Any] = dict(label=getattr(labels, setting.label or name), info=describe(name, labels))
    return kind(elem_id=name.replace("_", "-"), elem_classes=DESCRIBED, **words, **usual, **own, **given)


def _control_class(setting: Setting) -> type[Control]:
    if setting.choices:
        return gr.Dropdown
    if setting.type is bool:
        return gr.Checkbox
    return gr.Textbox if setting.type is str else gr.Number


def control_updates(preset: Preset, texts: Texts, values: GenerationRequest | None = None) -> dict[str, dict[str, Any]]:
    """Return the choices and the value of each control, as Gradio arguments by the control's name.

    The values are from the request `values` if given, else from the preset. A value that the preset does not offer is added to
    the choices.
    """
    shown = values or preset
    high, *others = shown.guidance
    first = count_guided_steps(shown.guidance, shown.guidance_interval, shown.steps) or 0
    start, end = (dict(minimum=0, maximum=100, step=1, value=round(100 * share, 6)) for share in shown.guidance_interval)
    return {
        "resolution": _size_choices(preset, (shown.width, shown.height)),
        "length": _length_choices(preset, shown.num_frames, texts),
        "guidance": _guidance_range(high) | dict(visible=preset.max_guidance > 1),
        "guidance_low": _guidance_range(others[0] if others else high) | dict(visible=preset.num_experts > 1),
        "guidance_start": start,
        "guidance_end": end,
        "context_windows": _window_choices(preset, SETTINGS["context_windows"].value_in(shown), texts),
        "loras": dict(value=format_loras(shown.loras)),
        "guided_steps": dict(
            minimum=0, maximum=max(*OFFERED, first), step=1, value=first, visible=preset.first_guidance is not None
        ),
        **{one.name: _plain_control(one, one.value_in(shown), preset) for one in PLAIN},
    }


def _plain_control(setting: Setting, value: Any, preset: Preset) -> dict[str, Any]:
    """Return the Gradio arguments of a control that is built from the settings table alone.

    Presets can override choices, maximum and visibility by fields such as `solvers`, `max_nag` and `takes_nag`.
    """
    if setting.choices:
        return dict(choices=list(dict.fromkeys([*getattr(preset, f"{setting.name}s", setting.choices), value])), value=value)
    if setting.slider_range is None:
        return dict(value=value, visible=bool(not setting.needs or getattr(preset, setting.needs)))
    smallest, largest, step = setting.slider_range
    largest, is_taken = getattr(preset, f"max_{setting.name}", largest), getattr(preset, f"takes_{setting.name}", True)
    return dict(minimum=min(smallest, value), maximum=max(largest, value), step=step, value=value, visible=is_taken)


def preset_updates(preset: Preset, texts: Texts) -> list[dict[str, Any]]:
    """Return Gradio updates of `SettingsPanel.follows_preset` for a newly chosen preset."""
    return [gr.update(**given) for given in control_updates(preset, texts).values()]


def length_text(frames: int, fps: int, texts: Texts) -> str:
    """Return a video's length as text, such as "2.0 s · 33 frames"."""
    return texts.length_choice.format(seconds=frames / fps, frames=frames)


def _size_choices(preset: Preset, shown: tuple[int, int]) -> dict[str, Any]:
    sizes = list(dict.fromkeys([*preset.sizes, shown]))
    choices = [(f"{width} × {height}", f"{width}x{height}") for width, height in sizes]
    return dict(choices=choices, value=f"{shown[0]}x{shown[1]}")


def _length_choices(preset: Preset, shown: int, texts: Texts) -> dict[str, Any]:
    counts = sorted({*preset.frame_counts, shown})
    return dict(choices=[(_length_choice(preset, count, texts), count) for count in counts], value=shown)


def _length_choice(preset: Preset, frames: int, texts: Texts) -> str:
    """Return a length as text, with a note if a video of this length is denoised in windows."""
    words = length_text(frames, preset.fps, texts)
    return texts.length_in_windows.format(length=words) if window_frames(preset, frames, None) else words


def _window_choices(preset: Preset, shown: bool | None, texts: Texts) -> dict[str, Any]:
    choices = [(texts.windows_by_preset, ""), (texts.windows_on, "on"), (texts.windows_off, "off")]
    value = "" if shown is None else "on" if shown else "off"
    return dict(choices=choices, value=value, visible=preset.trained_frames is not None)


def _guidance_range(shown: float) -> dict[str, Any]:
    smallest, largest = GUIDANCE_RANGE
    return dict(minimum=min(smallest, shown), maximum=max(largest, shown), step=0.1, value=shown)


def unavailable_presets_html(choices: PresetChoices, texts: Texts) -> str:
    """Render the presets that cannot run on this machine, as a list that opens when its heading is pressed."""
    if not choices.unavailable:
        return ""
    rows = "".join(_unavailable_preset_html(preset, texts) for preset in choices.unavailable)
    where = f'<li><button type="button" data-view="models">{escape(texts.presets_where)}</button></li>'
    summary = escape(texts.presets_elsewhere.format(count=len(choices.unavailable)))
    return f'<details class="elsewhere"><summary>{summary}</summary><ul>{where}{rows}</ul></details>'


def _unavailable_preset_html(preset: Preset, texts: Texts) -> str:
    words = preset.words(texts.language)
    return (
        f"<li><b>{escape(words.title)}</b><span>{escape(words.description)}</span>"
        f"<span>{escape(texts.preset_missing)}</span></li>"
    )
