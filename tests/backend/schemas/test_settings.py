"""Tests that each setting is described once, and that the command line, programs, the reference and the form show the text."""

import re

import pytest

from backend.cli import reference
from backend.cli.command_line import parse
from backend.schemas.settings import FOR_PROGRAMS, SETTINGS
from presets import load_preset
from wan_ui.components.descriptions import describe
from wan_ui.form.settings import control_updates
from wan_ui.i18n.english import ENGLISH
from wan_ui.i18n.labels import labels
from wan_ui.i18n.languages import LANGUAGES
from wan_ui.routes.api import describe_endpoint
from wan_ui.routes.mcp import describe_tools

SENTENCE_END = re.compile(r"[.!?](?= [A-Z0-9`{+]|$)")


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)
def test_a_description_has_two_to_four_short_sentences(setting):
    assert setting.description.endswith(".")
    assert 2 <= len(SENTENCE_END.findall(setting.description)) <= 4
    assert len(setting.description.split()) <= 50


def test_the_help_is_the_first_sentence_with_the_default():
    helps = {name: SETTINGS[name].help for name in ("steps", "make", "keeps_sound", "mag_cache", "loras", "prompt")}
    assert helps["steps"] == "number of denoising steps (the preset's own)"
    assert helps["make"].endswith("for the clip (video)") and helps["mag_cache"].startswith("MagCache: ")
    assert helps["keeps_sound"] == "do not keep the audio of the model or of the clip"  # the option is --no-sound
    assert helps["loras"].endswith("file.safetensors") and helps["prompt"] == "what the video shows"


def test_the_command_line_shows_the_help_of_each_option(capsys):
    with pytest.raises(SystemExit):
        parse(["generate", "--help"])
    shown = re.sub(r"-\s+", "-", " ".join(capsys.readouterr().out.split()))
    assert [name for name, one in SETTINGS.items() if one.stage and re.sub(r"-\s+", "-", one.help) not in shown] == []


def test_programs_get_each_description():
    tool = describe_tools(["wan-tiny"], "wan-tiny")[0]["inputSchema"]["properties"]["settings"]["properties"]
    assert {name: one["description"] for name, one in tool.items()} == {name: SETTINGS[name].description for name in FOR_PROGRAMS}
    assert tool["steps"]["type"] == "integer" and tool["make"]["enum"] == ["video", "sound"]
    assert [name for name in FOR_PROGRAMS if SETTINGS[name].description not in describe_endpoint()] == []


def test_the_reference_shows_each_description():
    page = reference.page().replace("\\|", "|")
    assert [name for name, one in SETTINGS.items() if one.stage and one.description not in page] == []


def test_the_form_has_a_description_of_each_control_in_each_language():
    for name in [*control_updates(load_preset("wan-tiny"), ENGLISH), "seed", "preset"]:
        assert len({describe(name, texts) for texts in LANGUAGES.values()}) == len(LANGUAGES), name
        assert "studio_description_" in str(describe(name, labels()))
    assert describe("length", ENGLISH) == SETTINGS["num_frames"].description
