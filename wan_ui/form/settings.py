"""Model, size, length and sampling. Offers the preset's values, and those of loaded settings.

`texts` are words for HTML, `labels` the same words as keys that Gradio translates in the browser.
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
from wan_ui.components.field_errors import build_note
from wan_ui.form.loras import format_loras
from wan_ui.gateway.body_limit import LONGEST_TEXT
from wan_ui.i18n.english import Texts
from wan_ui.services.presets import PresetChoices

GUIDANCE_RANGE = (1.0, 12.0)
PLAIN = tuple(one for one in FIELDS if one.label)
"""The settings that have a control of their own, as their table says it; what the other controls show is said here."""

_ROWS = (("resolution", "length"), ("steps", "flow_shift"), ("guidance", "guidance_low"), ("guided_steps", "nag"))
_MORE = (("negative_prompt",), ("fps", "solver"), ("guidance_start", "guidance_end"))
_LAST = "loras"  # those that are named nowhere here come before it
_KINDS = {"resolution": gr.Dropdown, "length": gr.Dropdown, "context_windows": gr.Dropdown, "loras": gr.Textbox}


Control = gr.Checkbox | gr.Dropdown | gr.Number | gr.Slider | gr.Textbox


@dataclass(frozen=True, kw_only=True)
class SettingsPanel:
    """The panel's components. `controls` are those that change with the preset, by the names that `settings_of` gives them."""

    preset: gr.Dropdown
    preset_note: gr.HTML
    seed: gr.Number
    is_seed_random: gr.Checkbox
    note: gr.HTML
    controls: dict[str, Control]

    def show_values(self, shown: GenerationRequest, preset: Preset, texts: Texts) -> dict[gr.blocks.Block, Any]:
        """Gradio updates that show the request's values, and the preset's other choices."""
        return {self.controls[name]: gr.update(**update) for name, update in control_updates(preset, texts, shown).items()}

    @property
    def follows_preset(self) -> list[Control]:
        """The components that change with the preset."""
        return list(self.controls.values())

    @property
    def estimate_inputs(self) -> list[Control]:
        """The components that change how long a video takes."""
        names = ["resolution", "length", "steps", "guidance", "guidance_low", "guidance_end", "mag_cache", "progressive"]
        names += ["upscale", "upscaler"]
        return [self.preset, *(self.controls[name] for name in names)]

    @property
    def guidance_controls(self) -> list[Control]:
        """What says how strong guidance is and on which steps."""
        return [self.controls[name] for name in ("guidance", "guidance_low", "guidance_start", "guidance_end")]


def build_preset_picker(choices: PresetChoices, texts: Texts, labels: Texts) -> tuple[gr.Dropdown, gr.HTML]:
    """The model's dropdown and the line about those that are not here."""
    preset = choices.pick_preset(None)
    with gr.Column(elem_id="model"):
        picker = gr.Dropdown(
            choices.dropdown_choices(texts.language),
            value=preset.name if preset else None,
            label=labels.preset,
            elem_id="preset",
            filterable=False,
            info=None if preset else labels.presets_none,
        )
        note = gr.HTML(unavailable_presets_html(choices, texts), elem_id="preset-note")
    return picker, note


def build_settings_panel(choices: PresetChoices, preset: Preset, texts: Texts, labels: Texts) -> SettingsPanel:
    """Builds the panel, filled for this preset."""
    picker, preset_note = build_preset_picker(choices, texts, labels)
    given = control_updates(preset, texts)
    built: dict[str, Control] = {}
    seed = is_random = None
    for names in _ROWS:
        with gr.Row(elem_classes="pair"):
            built |= {name: _build_control(name, labels, given[name]) for name in names}
            if "guidance" in names:
                with gr.Column(elem_classes="seed", min_width=120):
                    seed = gr.Number(label=labels.seed, value=0, precision=0, elem_id="seed", min_width=120)
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
    """The controls that have no place of their own."""
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
        "loras": dict(max_lines=4),
    }.get(name, {})
    words: dict[str, Any] = dict(label=getattr(labels, setting.label or name), info=getattr(labels, f"{name}_info", None))
    return kind(elem_id=name.replace("_", "-"), **words, **usual, **own, **given)


def _control_class(setting: Setting) -> type[Control]:
    if setting.choices:
        return gr.Dropdown
    if setting.type is bool:
        return gr.Checkbox
    return gr.Textbox if setting.type is str else gr.Number


def control_updates(preset: Preset, texts: Texts, values: GenerationRequest | None = None) -> dict[str, dict[str, Any]]:
    """The choices and the value of each control, as Gradio arguments by its name.

    Shows the settings of the request `values`, or else the preset's own; a value that the preset does not offer is added to the
    choices.
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
    """What the control of a setting offers that has one of its own; presets may say so by fields of these names."""
    if setting.choices:
        return dict(choices=list(dict.fromkeys([*getattr(preset, f"{setting.name}s", setting.choices), value])), value=value)
    if setting.slider is None:
        return dict(value=value, visible=bool(not setting.needs or getattr(preset, setting.needs)))
    smallest, largest, step = setting.slider
    largest, is_taken = getattr(preset, f"max_{setting.name}", largest), getattr(preset, f"takes_{setting.name}", True)
    return dict(minimum=min(smallest, value), maximum=max(largest, value), step=step, value=value, visible=is_taken)


def preset_updates(preset: Preset, texts: Texts) -> list[dict[str, Any]]:
    """Gradio updates for `SettingsPanel.follows_preset` when this preset is chosen."""
    return [gr.update(**given) for given in control_updates(preset, texts).values()]


def length_text(frames: int, fps: int, texts: Texts) -> str:
    """A video's length in words, the seconds before the frames."""
    return texts.length_choice.format(seconds=frames / fps, frames=frames)


def _size_choices(preset: Preset, shown: tuple[int, int]) -> dict[str, Any]:
    sizes = list(dict.fromkeys([*preset.sizes, shown]))
    choices = [(f"{width} × {height}", f"{width}x{height}") for width, height in sizes]
    return dict(choices=choices, value=f"{shown[0]}x{shown[1]}")


def _length_choices(preset: Preset, shown: int, texts: Texts) -> dict[str, Any]:
    counts = sorted({*preset.frame_counts, shown})
    return dict(choices=[(_length_choice(preset, count, texts), count) for count in counts], value=shown)


def _length_choice(preset: Preset, frames: int, texts: Texts) -> str:
    """A length in words, which say whether such a video is denoised in windows."""
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
    """The presets that cannot run here, behind one small line that opens."""
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
