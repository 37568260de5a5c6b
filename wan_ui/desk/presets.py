"""Which presets can be run here, and why the others cannot. `backend.engine.weights_here` looks for weights."""

from collections.abc import Callable
from dataclasses import dataclass

from backend.contract.request import GenerationRequest, find_preset
from backend.engine.weights_here import has_weights
from backend.errors import RequestError
from presets import Preset, list_presets
from presets.loader import Task

CanRun = Callable[[Preset], bool]


@dataclass(frozen=True, kw_only=True)
class PresetChoices:
    """The presets for one task: those that can run, and those that cannot with the reason."""

    available: tuple[Preset, ...]
    elsewhere: tuple[Preset, ...]

    def dropdown(self, language: str) -> list[tuple[str, str]]:
        """Titles in this language and names of what can be chosen."""
        return [(preset.words(language).title, preset.name) for preset in self.available]

    def pick(self, name: str | None) -> Preset | None:
        """The preset of this name if it can run here, else the first that can."""
        named = [preset for preset in self.available if preset.name == name]
        return next(iter([*named, *self.available]), None)


def preset_choices(task: Task, can_run: CanRun = has_weights) -> PresetChoices:
    """All presets that do this task, sorted by whether they can run here."""
    presets = [preset for preset in list_presets() if task in preset.tasks]
    available = tuple(preset for preset in presets if can_run(preset))
    return PresetChoices(available=available, elsewhere=tuple(preset for preset in presets if preset not in available))


def full_preset(request: GenerationRequest) -> Preset | None:
    """The preset that makes the same as this request's at full quality, if there is one."""
    try:
        name = find_preset(request.preset).draft_of
    except RequestError:
        return None
    return next((preset for preset in list_presets() if preset.name == name), None)
