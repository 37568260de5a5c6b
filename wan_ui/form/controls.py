"""The controls of the settings: what each control shows for a model, a video and a mode. `settings.py` renders the controls for
Gradio, `settings_html.py` as HTML.

A control has the name of its setting. These settings have other controls: `resolution` for the size, `length` for the number of
frames, `guidance` and `guidance_low` for the experts, `guidance_start` and `guidance_end` (per cent) for the interval.
`guided_steps` sets the guidance and its interval together. A setting with a number for the image and a number for the audio has
a second control, whose name ends in `_sound`.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import ValidationError

from backend.errors import RequestError, shorten
from backend.schemas.guidance_steps import OFFERED, count_guided_steps, interval_end
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import FIELDS, GUIDED_STEPS, SETTINGS, Setting, window_frames
from presets import LoraChoice, Preset, list_presets
from wan_ui.i18n.english import Texts

GUIDANCE_RANGE = (1.0, 12.0)
PLAIN = tuple(one for one in FIELDS if one.label)
"""The settings whose controls are built from the settings table alone."""

_PAIRS = {one.name: f"{one.name}_sound" for one in PLAIN if one.is_list}
_SPECIAL: Mapping[str, tuple[str, ...]] = {
    "resolution": ("width", "height"),
    "length": ("num_frames",),
    "guidance": ("guidance",),
    "guidance_low": ("guidance",),
    "guided_steps": (),
    "guidance_start": ("guidance_interval",),
    "guidance_end": ("guidance_interval",),
    "context_windows": ("context_windows",),
    "loras": ("loras",),
}
_FIRST = ("resolution", "length", "steps", "flow_shift", "guidance", "guidance_low", "guided_steps", "nag")
_NEXT = ("negative_prompt", "fps", "solver", "guidance_start", "guidance_end", "context_windows")
NAMES = tuple(
    dict.fromkeys((*_FIRST, *_NEXT, *(name for one in PLAIN for name in filter(None, (one.name, _PAIRS.get(one.name)))), "loras"))
)
"""The names of all controls, in the order of the views."""

SETTINGS_WITH_CONTROL = frozenset(one.name for one in PLAIN).union(*_SPECIAL.values())
_WINDOWS = {"on": True, "off": False}  # any other value of the control means the preset's rule

Kind = Literal["choice", "slider", "number", "text", "check"]


@dataclass(frozen=True, kw_only=True)
class Control:
    """Describes a control. `limits` are a slider's smallest value, largest value and step. `label` is the key of its label."""

    name: str
    label: str
    kind: Kind
    value: Any
    choices: tuple[tuple[str, Any], ...] = ()
    limits: tuple[float, float, float] | None = None
    is_whole: bool = False
    is_shown: bool = True


def describe_controls(
    preset: Preset, texts: Texts, values: GenerationRequest | None = None, given: Collection[str] = ()
) -> dict[str, Control]:
    """Return all controls by name, in the order in which views show them.

    Args:
        values: The request whose values are shown, by default the preset's values. A value that the preset does not offer is
            added to the choices.
        given: The fields of the request that the view's mode sets. A setting that excludes any of these fields is not shown.
    """
    shown = control_values(values or preset)
    if values is None and "drive" in given:
        shown["resolution"] = ""  # selects "Same shape as the image"
    return {name: _describe_control(name, shown, preset, texts, given) for name in NAMES}


def control_values(shown: GenerationRequest | Preset) -> dict[str, Any]:
    """Return the values of all controls for a request, or for a preset's own settings."""
    high, *others = shown.guidance
    start, end = (round(100 * share, 6) for share in shown.guidance_interval)
    windows = SETTINGS["context_windows"].value_in(shown)
    plain = {}
    for one in PLAIN:
        value = one.value_in(shown)
        plain |= dict(zip((one.name, _PAIRS[one.name]), value, strict=True)) if one.name in _PAIRS else {one.name: value}
    steps = shown.num_steps if isinstance(shown, GenerationRequest) else shown.steps
    first = count_guided_steps(shown.guidance, shown.guidance_interval, steps) or 0
    return plain | {
        "resolution": f"{shown.width}x{shown.height}",
        "length": shown.num_frames,
        "guidance": high,
        "guidance_low": others[0] if others else high,
        "guided_steps": first if shown.guidance_interval[1] == interval_end(first, steps) else 0,
        "guidance_start": start,
        "guidance_end": end,
        "context_windows": "" if windows is None else "on" if windows else "off",
        "loras": format_loras(shown.loras),
    }


def shown_settings(preset: Preset, given: Collection[str]) -> frozenset[str]:
    """Return the names of the settings whose controls a view shows for this preset, in a mode that sets the fields `given`."""
    shown = (name for name in NAMES if is_shown(name, preset, given))
    return frozenset(setting for name in shown for setting in _settings_of(name))


def read_controls(values: object) -> dict[str, Any]:
    """Return the unchecked settings, by name, of the given controls. A view sends only the controls that it shows.

    Raises: RequestError for an unknown control or an unreadable value.
    """
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise RequestError("the settings", "must be values by name", "press the button again")
    unknown = values.keys() - {*NAMES, "seed"}
    if unknown:
        what = f"the settings have {shorten(', '.join(sorted(map(str, unknown))))}, which"
        raise RequestError(what, "no view has", f"choose from {', '.join(NAMES)}")
    settings = {name: value for name, value in values.items() if name not in _SPECIAL and name not in _PAIRS.values()}
    settings |= {name: (value, values.get(_PAIRS[name])) for name, value in settings.items() if name in _PAIRS}
    settings |= {name: settings[name] or "" for name in settings if name in SETTINGS and SETTINGS[name].type is str}
    if values.get("resolution"):
        settings["width"], settings["height"] = parse_size(values["resolution"])
    if "length" in values:
        settings["num_frames"] = values["length"]
    if values.get("guidance") is not None:
        settings["guidance"] = tuple(values[name] for name in ("guidance", "guidance_low") if name in values)
    if "guidance_start" in values:
        settings["guidance_interval"] = tuple(map(_percent_to_share, (values["guidance_start"], values.get("guidance_end"))))
    elif values.get("guided_steps"):
        settings[GUIDED_STEPS.name] = values["guided_steps"]
    if "context_windows" in values:
        settings["context_windows"] = _WINDOWS.get(str(values["context_windows"]))
    if "loras" in values:
        if not isinstance(values["loras"], str | None):
            raise RequestError(f"loras={shorten(values['loras'])}", "must be lines of text, one for each", "write them again")
        settings["loras"] = parse_loras(values["loras"])
    return settings


def parse_size(choice: object) -> tuple[int, int]:
    """Read width and height from a value of the resolution dropdown, such as "832x480".

    Raises: RequestError for any other text, and for a side shorter or longer than any preset allows.
    """
    sizes = re.fullmatch(r"([0-9]{1,5})x([0-9]{1,5})", str(choice))
    if sizes is None:
        raise RequestError(f"resolution={str(choice)[:40]!r}", "must be WIDTHxHEIGHT", "choose one that is offered")
    width, height = int(sizes[1]), int(sizes[2])
    smallest, largest = _side_limits()
    if not (smallest <= width <= largest and smallest <= height <= largest):
        raise RequestError(f"resolution={choice}", f"must have sides of {smallest} to {largest}", "choose one that is offered")
    return width, height


def length_text(frames: int, fps: int, texts: Texts) -> str:
    """Return a video's length as text, such as "2.0 s · 33 frames"."""
    return texts.length_choice.format(seconds=frames / fps, frames=frames)


def _settings_of(name: str) -> tuple[str, ...]:
    pair = next((first for first, second in _PAIRS.items() if second == name), name)
    return _SPECIAL.get(name, (pair,))


def is_shown(name: str, preset: Preset, given: Collection[str] = ()) -> bool:
    """Return whether a model can use the control's setting in a mode that sets the fields `given`."""
    is_guided = preset.max_guidance > 1
    match name:
        case "guidance" | "guidance_start" | "guidance_end":
            return is_guided
        case "guidance_low":
            return preset.num_experts > 1
        case "guided_steps":
            return preset.first_guidance is not None
        case "negative_prompt":
            return is_guided or preset.takes_nag
        case "solver":
            return len(preset.solvers) > 1
        case "context_windows":
            return preset.trained_frames is not None
        case "image_crf" if not preset.image_crf:
            return False  # only models that were trained on compressed images benefit
        case "keeps_sound" if not preset.makes_sound and ("extend" in given or not {"video", "drive"} & {*given}):
            return False  # the video has no audio: the model generates none, and the video keeps none of a clip
    settings = [SETTINGS[one] for one in _settings_of(name)]
    return all(one.is_supported_by(preset) and not {*one.excludes} & {*given} for one in settings)


def _describe_control(name: str, values: Mapping[str, Any], preset: Preset, texts: Texts, given: Collection[str]) -> Control:
    value, own = values[name], SETTINGS.get(_settings_of(name)[0] if _settings_of(name) else name, Setting())
    facts: dict[str, Any] = dict(name=name, value=value, is_shown=is_shown(name, preset, given), is_whole=own.type is int)
    match name:
        case "resolution":
            sizes = dict.fromkeys([*(f"{width}x{height}" for width, height in preset.sizes), *filter(None, [value])])
            choices = tuple((size.replace("x", " × "), size) for size in sizes)
            as_image = ((texts.edit_image_shape, ""),) if "drive" in given else ()
            return Control(label=name, kind="choice", choices=as_image + choices, **facts)
        case "length":
            counts = sorted({*preset.frame_counts, value})
            lengths = {count: length_text(count, preset.fps, texts) for count in counts}
            windowed = [count for count in counts if window_frames(preset, count, None)]  # denoised in windows
            lengths |= {count: texts.length_in_windows.format(length=lengths[count]) for count in windowed}
            choices = tuple((words, count) for count, words in lengths.items())
            return Control(label=name, kind="choice", choices=choices, **facts)
        case "guidance" | "guidance_low":
            return Control(label=name, kind="slider", limits=_widen((*GUIDANCE_RANGE, 0.1), value), **facts)
        case "guided_steps":
            return Control(label=name, kind="slider", limits=(0, max(*OFFERED, value), 1), **facts)
        case "guidance_start" | "guidance_end":
            return Control(label=name, kind="slider", limits=(0, 100, 1), **facts)
        case "context_windows":
            choices = ((texts.windows_by_preset, ""), (texts.windows_on, "on"), (texts.windows_off, "off"))
            return Control(label=name, kind="choice", choices=choices, **facts)
        case "loras":
            return Control(label=name, kind="text", **facts)
    label = f"{own.label}_sound" if name in _PAIRS.values() else own.label
    if own.choices:
        offered = dict.fromkeys([*getattr(preset, f"{name}s", own.choices), value])
        return Control(label=label, kind="choice", choices=tuple((one, one) for one in offered), **facts)
    if own.slider_range is None or own.default is None:
        kind: Kind = "check" if own.type is bool else "text" if own.type is str else "number"
        return Control(label=label, kind=kind, **facts)
    smallest, largest, step = own.slider_range
    limits = _widen((smallest, getattr(preset, f"max_{name}", largest), step), value)
    return Control(label=label, kind="slider", limits=limits, **facts)


def _widen(limits: tuple[float, float, float], value: float) -> tuple[float, float, float]:
    smallest, largest, step = limits
    return min(smallest, value), max(largest, value), step


def _percent_to_share(percent: Any) -> float:
    try:
        return round(float(percent) / 100, 8)
    except (TypeError, ValueError):
        what = f"guidance_interval={str(percent)[:40]!r}"
        raise RequestError(what, "must be numbers of per cent", "0 to 100 is usual") from None


@cache
def _side_limits() -> tuple[int, int]:
    """Return the shortest and the longest side that any preset supports. The cache avoids reading the presets' files again."""
    presets = list_presets()
    shortest = min(side for preset in presets for side in (preset.min_width, preset.min_height))
    return shortest, max(side for preset in presets for side in (preset.max_width, preset.max_height))


def format_loras(loras: Iterable[LoraChoice]) -> str:
    """Return one line for each LoRA: "FILE = STRENGTH" or "FILE = STRENGTH EXPERT"."""
    experts = {"both": "", "high": " high", "low": " low"}
    return "\n".join(f"{lora.source} = {lora.scale:g}{experts[lora.expert]}" for lora in loras)


def parse_loras(text: str | None) -> tuple[LoraChoice, ...]:
    """Read one LoRA from each line that is not empty. No file is opened. Raises: RequestError for an invalid line."""
    loras = []
    for line in filter(None, map(str.strip, (text or "").splitlines())):
        source, _, rest = line.partition("=")
        words = rest.split()
        try:
            expert: dict[str, Any] = {"expert": words[1]} if len(words) > 1 else {}  # LoraChoice validates the word
            if len(words) > 2:
                raise ValueError("too many words")
            loras.append(LoraChoice(source=source.strip(), scale=float(words[0]) if words else 1.0, **expert))
        except (ValueError, ValidationError):
            rule = "must be FILE.safetensors, and can be followed by = STRENGTH, and high or low"
            raise RequestError(f"loras={line[:80]!r}", rule, "correct the line") from None
    return tuple(loras)
