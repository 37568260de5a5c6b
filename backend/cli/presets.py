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
    """Print all presets, or one preset with an example command and its bases. Raises: RequestError for an unknown name."""
    if arguments.action == "list":
        presets = list_presets()
        facts: object = [preset.model_dump(mode="json") for preset in presets]
        widest = max(len(preset.name) for preset in presets)
        lines = [
            f"{one.name:{widest}}  {one.title}: {one.width}x{one.height}, {one.num_frames} frames, {one.steps} steps, "
            f"{' and '.join(one.tasks)}"
            for one in presets
        ]
    else:
        preset = find_preset(arguments.name)
        bases = [path.relative_to(PRESET_FOLDER.parent).as_posix() for path in find_files(preset.name)[1:]]  # direct base first
        facts = values = preset.model_dump(mode="json") | {"command": shlex.join(example_command(preset)), "bases": bases}
        texts = {name: one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for name, one in values.items()}
        lines = [f"{name}: {text}" for name, text in texts.items()]
    sys.stdout.write((json.dumps(facts, indent=2) if arguments.json else "\n".join(lines)) + "\n")


def example_command(preset: Preset) -> list[str]:
    """Return the words of a command that generates a video with the preset, its first example and placeholders for files."""
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
