"""Texts about settings of a video that a view cannot load."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from backend.schemas.request import GenerationRequest
from backend.schemas.settings import FIELDS, SETTINGS, Setting, find_preset
from wan_ui.form.controls import shown_settings
from wan_ui.i18n.english import Texts

LONGEST = 60  # characters of a value
FILES_OF_SHOTS = frozenset({"shot_images", "shot_videos", "shot_drives", "figure_images", "track"})
_INPUTS_OF_FORM = frozenset(
    {
        *("prompt", "seed", "image", "last_image", "image_focus", "sound", "sound_start"),
        *("shots", "figures", "shot_images", "shot_videos", "figure_images"),
        *("track", "track_start", "track_fade", "track_volume"),
    }
)

_NOT_CHOSEN = frozenset({"preset", "task", "mag_ratios", "is_open", "finished_video"})
"""Fields of a request that the visitor does not choose, or that a view shows in another way."""


def changed_settings(request: GenerationRequest) -> list[Setting]:
    """Return the settings whose values differ from the preset's values, in the order of the settings table.

    Raises: RequestError for an unknown preset.
    """
    # `request.resolved_preset` already has the request's `quantize`, so a comparison with it would miss a change.
    preset = find_preset(request.preset)
    return [one for one in FIELDS if one.name not in _NOT_CHOSEN and one.value_in(request) != one.value_in(preset)]


def shown_by_form(request: GenerationRequest) -> frozenset[str]:
    """Return the names of the settings that the form of the Create view shows for the request's model.

    Raises: RequestError for an unknown preset.
    """
    return _INPUTS_OF_FORM | shown_settings(request.resolved_preset, ())


def unused_settings_text(request: GenerationRequest, shown: Collection[str], texts: Texts) -> str:
    """Return a sentence with the label and value of each changed setting that is not in `shown`, "" if no such setting exists.

    Raises: RequestError for an unknown preset.
    """
    named = [setting_text(one.name, request, texts) for one in changed_settings(request) if one.name not in shown]
    return texts.not_used.format(settings=texts.list_separator.join(named)) if named else ""


def setting_text(name: str, request: GenerationRequest, texts: Texts) -> str:
    """Return a setting's label and its value in the request, such as "steps 20"."""
    return f"{setting_label(name, texts)} {value_text(name, SETTINGS[name].value_in(request), texts)}"


def setting_label(name: str, texts: Texts) -> str:
    """Return a setting's short label, else the label of its control with a small first letter, else its name."""
    label = getattr(texts, SETTINGS[name].label, "") or name.replace("_", " ")
    return texts.with_prefix("setting_").get(name) or label[:1].lower() + label[1:]


def value_text(name: str, value: Any, texts: Texts, longest: int = LONGEST) -> str:
    """Return a setting's value in a request as text. Prompts with more than `longest` characters are shortened."""
    if value is None or value is False or value == "" or value == ():
        return texts.setting_off
    if value is True:
        return texts.setting_on
    if SETTINGS[name].media:
        return texts.list_separator.join(Path(path).name for path in ((value,) if isinstance(value, str) else value))
    match name:
        case "loras":
            experts = {"both": "", "high": " (high)", "low": " (low)"}
            return texts.list_separator.join(f"{one.source} × {one.scale:g}{experts[one.expert]}" for one in value)
        case "figures":
            return texts.list_separator.join(one.name for one in value)
        case "shots" | "cues":
            parts = (one.prompt or getattr(one, "action", None) or "" for one in value)
            value = f"{len(value)} ({'; '.join(parts)})"
    if isinstance(value, tuple):
        return texts.list_separator.join(f"{one:g}" for one in value)
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= longest else f"{text[:longest]}…"
