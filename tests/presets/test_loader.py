"""The preset files are whole, consistent, and found by name only."""

import pytest
from pydantic import ValidationError

from presets import Preset, UnknownPreset, list_presets, load_preset

NAMES = ["wan-tiny", "wan2.1-t2v-1.3b-480p", "wan2.1-t2v-14b-480p", "wan2.1-t2v-14b-720p"]


def test_the_demo_model_comes_first():
    assert [preset.name for preset in list_presets()] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_header_says_command_hardware_time_and_source(name):
    from presets.loader import PRESET_FOLDER

    header = (PRESET_FOLDER / f"{name}.toml").read_text(encoding="utf-8").split("title =")[0]
    for word in ("# command:", "# hardware:", "# time:", "# source:", f"--preset {name} "):
        assert word in header


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_among_what_is_offered(name):
    preset = load_preset(name)
    assert (preset.width, preset.height) in preset.sizes
    assert preset.num_frames in preset.frame_counts
    assert preset.size_multiple % preset.vae_scale_spatial == 0


@pytest.mark.parametrize("name", NAMES[1:])
def test_wan_presets_carry_the_official_negative_prompt(name):
    preset = load_preset(name)
    assert preset.negative_prompt.startswith("色调艳丽，过曝，静态，")
    assert preset.negative_prompt.endswith("背景人很多，倒着走")
    assert len(preset.negative_prompt.split("，")) == 28


def test_the_embedded_model_lies_in_the_project():
    assert load_preset("wan-tiny").model_source.endswith("/models/wan-tiny")
    assert load_preset("wan2.1-t2v-14b-480p").model_source == "Wan-AI/Wan2.1-T2V-14B-Diffusers"


def test_an_unknown_name_gets_the_names_and_the_nearest():
    with pytest.raises(UnknownPreset) as caught:
        load_preset("wan-tny")
    assert str(caught.value) == f"preset='wan-tny' must be one of {', '.join(NAMES)}; did you mean wan-tiny?"


@pytest.mark.parametrize("name", ["", "../presets/wan-tiny", "wan-tiny.toml", "/etc/passwd"])
def test_a_name_is_never_a_path(name):
    with pytest.raises(UnknownPreset):
        load_preset(name)


@pytest.mark.parametrize(
    "change", [{"sizes": [[100, 128]]}, {"frame_counts": [18]}, {"num_frames": 37}, {"steps": 101}, {"colour": "red"}]
)
def test_a_preset_that_contradicts_itself_is_refused(change):
    with pytest.raises(ValidationError):
        Preset(**{**load_preset("wan-tiny").model_dump(), **change})
