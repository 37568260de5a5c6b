"""The command `presets`: list the presets, or show one preset."""

import argparse
import json
import shlex
import sys

from backend.schemas.settings import find_preset
from presets import Preset, list_presets
from presets.loader import PRESET_FOLDER, find_files

_VIDEO_ROLES = ("video", "drive", "face")


def show_presets(arguments: argparse.Namespace) -> None:
    """Print all presets, or one preset with its command and bases. Raises: RequestError for an unknown name."""
    if arguments.action == "list":
        presets = list_presets()
        text = _format_json([preset.model_dump(mode="json") for preset in presets]) if arguments.json else _format_list(presets)
    else:
        facts = _preset_facts(find_preset(arguments.name))
        text = _format_json(facts) if arguments.json else _format_facts(facts)
    sys.stdout.write(text + "\n")


def example_command(preset: Preset) -> list[str]:
    """Return the words of a command that generates a video with the preset and its first example.

    The names of input files are placeholders.
    """
    words = ["live" if preset.live else "generate", "--preset", preset.name]
    if preset.reads_prompt and preset.needs_prompt:
        words += ["--prompt", preset.examples[0]]
    required = [role for role, need in preset.inputs.items() if need == "must"]
    for role in ("video", "mask") if preset.has_control_blocks else required:
        words += [f"--{role.replace('_', '-')}", f"{role}.{'mp4' if role in _VIDEO_ROLES else 'png'}"]
    if preset.actions:
        words += ["--actions", ",".join(f"{action}*8" for action in preset.actions[:2])]
    elif preset.live:
        words += ["--prompts", f"8:{preset.examples[1]}"]
    return ["python", "app.py", *words, *(["--seconds", "8"] if preset.live else []), "--output", "out.mp4"]


def _preset_facts(preset: Preset) -> dict[str, object]:
    """Return all values of the preset, an example command, and the files from which the preset inherits, the nearest first."""
    bases = [path.relative_to(PRESET_FOLDER.parent).as_posix() for path in find_files(preset.name)[1:]]
    return preset.model_dump(mode="json") | {"command": shlex.join(example_command(preset)), "bases": bases}


def _format_json(facts: object) -> str:
    return json.dumps(facts, indent=2)


def _format_list(presets: list[Preset]) -> str:
    widest = max(len(preset.name) for preset in presets)
    return "\n".join(f"{preset.name:{widest}}  {preset.title}: {_format_size(preset)}" for preset in presets)


def _format_facts(facts: dict[str, object]) -> str:
    return "\n".join(f"{name}: {_format_value(value)}" for name, value in facts.items())


def _format_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _format_size(preset: Preset) -> str:
    tasks = " and ".join(preset.tasks)
    return f"{preset.width}x{preset.height}, {preset.num_frames} frames, {preset.steps} steps, {tasks}"
