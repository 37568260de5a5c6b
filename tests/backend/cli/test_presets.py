"""Tests of `presets list` and `presets show`."""

import json
import shlex

import pytest

from backend.cli.arguments import request_from_arguments
from backend.cli.command_line import parse
from backend.cli.presets import example_command, show_presets
from presets import Preset, list_presets, load_preset


def printed(capsys, *words: str) -> str:
    show_presets(parse(["presets", *words]))
    return capsys.readouterr().out


def test_a_preset_is_shown_with_inherited_values_its_command_and_its_bases(capsys):
    lines = printed(capsys, "show", "wan2.1-i2v-14b-480p").splitlines()
    assert {"flow_shift: 3.0", "steps: 40", 'tasks: ["i2v"]'} <= {
        *lines
    }  # from the file itself, from a preset and from a base file
    command = next(line for line in lines if line.startswith("command: "))
    assert command.startswith("command: python app.py generate --preset wan2.1-i2v-14b-480p --prompt 'The camera")
    assert lines[-1].startswith('bases: ["presets/wan2.1-i2v-14b-720p.toml", "presets/bases/wan2.1-i2v-14b.toml", ')


def test_json_has_the_same_values(capsys):
    shown = json.loads(printed(capsys, "show", "wan-tiny", "--json"))
    assert shown.pop("bases") == ["presets/bases/tiny.toml"]
    assert shlex.split(shown.pop("command")) == example_command(load_preset("wan-tiny"))
    assert shown == load_preset("wan-tiny").model_dump(mode="json") == json.loads(printed(capsys, "list", "--json"))[0]


@pytest.mark.parametrize("preset", list_presets(), ids=lambda preset: preset.name)
def test_the_command_of_each_preset_is_accepted(preset: Preset):
    program, app, *words = example_command(preset)
    arguments = parse(words)
    assert (program, app, arguments.preset) == ("python", "app.py", preset.name)
    required = {role for role, need in preset.inputs.items() if need == "must"}
    assert all(getattr(arguments, role) for role in required)
    if "drive" not in required:  # the length is read from the driving video
        assert request_from_arguments(arguments).preset == preset.name
