"""Presets that can run on this machine, and presets that cannot. `backend.catalog.weights_here` finds weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from backend.catalog.weights_here import has_weights
from backend.errors import RequestError
from backend.schemas.control import extend_directions
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import INPUTS
from presets import Preset, list_presets
from presets.loader import Task

CanRun = Callable[[Preset], bool]


@dataclass(frozen=True, kw_only=True)
class PresetChoices:
    """The presets for one task: presets that can run on this machine, and presets that cannot."""

    available: tuple[Preset, ...]
    unavailable: tuple[Preset, ...]

    def dropdown_choices(self, language: str) -> list[tuple[str, str]]:
        """Return (title in `language`, name) of each available preset."""
        return [(preset.words(language).title, preset.name) for preset in self.available]

    def pick_preset(self, name: str | None) -> Preset | None:
        """Return the preset `name` if it is available, else the first available preset, None if no preset is available."""
        named = [preset for preset in self.available if preset.name == name]
        return next(iter([*named, *self.available]), None)


def preset_choices(task: Task, can_run: CanRun = has_weights) -> PresetChoices:
    """Return the presets for a task. Animate presets are left out, because Edit offers them."""
    presets = [preset for preset in list_presets() if task in preset.tasks and preset.segment_frames is None]
    available = tuple(preset for preset in presets if can_run(preset))
    return PresetChoices(available=available, unavailable=tuple(preset for preset in presets if preset not in available))


def takes_inputs(preset: Preset, given: Mapping[str, object]) -> bool:
    """Return whether the preset takes the inputs in `given`, a request's inputs and settings by name, and needs no others."""
    needs, roles = preset.inputs, {one.name for one in INPUTS if one.subject != "story" and given.get(one.name)}
    if not roles <= needs.keys() or not {role for role, need in needs.items() if need == "must"} <= roles:
        return False
    if given.get("extend"):
        return given["extend"] in extend_directions(preset)
    if given.get("make") == "sound":
        return preset.makes_sound
    if given.get("margins"):
        return preset.has_control_blocks
    is_restyled = "video" in roles and not {"mask", "drive"} & roles
    return not (is_restyled and (preset.makes_sound or preset.has_control_blocks))


def full_preset(request: GenerationRequest) -> Preset | None:
    """Return the full-quality preset of a draft's request, None for other requests."""
    try:
        name = request.resolved_preset.draft_of
    except RequestError:
        return None
    return next((preset for preset in list_presets() if preset.name == name), None)
