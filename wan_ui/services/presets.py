"""Which presets can be run here, and why the others cannot. `backend.catalog.weights_here` looks for weights."""

from collections.abc import Callable
from dataclasses import dataclass

from backend.catalog.weights_here import has_weights
from backend.errors import RequestError
from backend.schemas.control import extend_directions
from backend.schemas.request import GenerationRequest, find_preset
from presets import Preset, list_presets
from presets.loader import Task

CanRun = Callable[[Preset], bool]


@dataclass(frozen=True, kw_only=True)
class PresetChoices:
    """The presets for one task: those that can run, and those that cannot with the reason."""

    available: tuple[Preset, ...]
    elsewhere: tuple[Preset, ...]

    def dropdown(self, language: str) -> list[tuple[str, str]]:
        """The titles, in this language, and the names of the presets that can be chosen."""
        return [(preset.words(language).title, preset.name) for preset in self.available]

    def pick(self, name: str | None) -> Preset | None:
        """The preset with this name if it can run here, else the first that can."""
        named = [preset for preset in self.available if preset.name == name]
        return next(iter([*named, *self.available]), None)


def preset_choices(task: Task, can_run: CanRun = has_weights) -> PresetChoices:
    """All presets for this task, divided into those that can run here and the others; those that a clip drives are Edit's."""
    presets = [preset for preset in list_presets() if task in preset.tasks and preset.segment_frames is None]
    available = tuple(preset for preset in presets if can_run(preset))
    return PresetChoices(available=available, elsewhere=tuple(preset for preset in presets if preset not in available))


def goes_on_with_sound(request: GenerationRequest) -> bool:
    """Whether the next video can begin with the end of the one of this request, picture and sound."""
    try:
        preset = find_preset(request.preset)
    except RequestError:
        return False
    return preset.makes_sound and "after" in extend_directions(preset)


def full_preset(request: GenerationRequest) -> Preset | None:
    """The full-quality preset of which this request's is the draft, if there is one."""
    try:
        name = find_preset(request.preset).draft_of
    except RequestError:
        return None
    return next((preset for preset in list_presets() if preset.name == name), None)
