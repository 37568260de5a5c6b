"""The command `presets`: lists them, or shows one."""

import argparse
import json
import sys

from backend.schemas.request import find_preset
from presets import Preset, list_presets


def show_presets(arguments: argparse.Namespace) -> None:
    """Prints all presets or one. Raises: RequestError for an unknown name."""
    chosen = list_presets() if arguments.action == "list" else find_preset(arguments.name)
    if arguments.json:
        text = json.dumps([_facts(preset) for preset in chosen] if isinstance(chosen, list) else _facts(chosen), indent=2)
    else:
        text = _table(chosen) if isinstance(chosen, list) else _page(chosen)
    sys.stdout.write(text + "\n")


def _facts(preset: Preset) -> dict:
    return preset.model_dump(mode="json")


def _table(presets: list[Preset]) -> str:
    widest = max(len(preset.name) for preset in presets)
    return "\n".join(f"{preset.name:{widest}}  {preset.title}: {_shape(preset)}" for preset in presets)


def _page(preset: Preset) -> str:
    return "\n".join(f"{name}: {_plain(value)}" for name, value in _facts(preset).items())


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shape(preset: Preset) -> str:
    tasks = " and ".join(preset.tasks)
    return f"{preset.width}x{preset.height}, {preset.num_frames} frames, {preset.steps} steps, {tasks}"
