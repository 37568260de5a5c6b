"""The command `presets`: list the presets, or show one preset."""

import argparse
import json
import sys

from backend.schemas.request import find_preset
from presets import Preset, list_presets


def show_presets(arguments: argparse.Namespace) -> None:
    """Print all presets or one preset. Raises: RequestError for an unknown name."""
    chosen = list_presets() if arguments.action == "list" else find_preset(arguments.name)
    if arguments.json:
        text = json.dumps(
            [_preset_facts(preset) for preset in chosen] if isinstance(chosen, list) else _preset_facts(chosen), indent=2
        )
    else:
        text = _format_list(chosen) if isinstance(chosen, list) else _format_preset(chosen)
    sys.stdout.write(text + "\n")


def _preset_facts(preset: Preset) -> dict:
    return preset.model_dump(mode="json")


def _format_list(presets: list[Preset]) -> str:
    widest = max(len(preset.name) for preset in presets)
    return "\n".join(f"{preset.name:{widest}}  {preset.title}: {_format_size(preset)}" for preset in presets)


def _format_preset(preset: Preset) -> str:
    return "\n".join(f"{name}: {_format_value(value)}" for name, value in _preset_facts(preset).items())


def _format_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _format_size(preset: Preset) -> str:
    tasks = " and ".join(preset.tasks)
    return f"{preset.width}x{preset.height}, {preset.num_frames} frames, {preset.steps} steps, {tasks}"
