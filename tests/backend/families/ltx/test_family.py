"""Which checkpoints are LTX-2, and one sentence for those that cannot be run."""

import copy

import pytest

from backend.contract.request import GenerationRequest
from backend.errors import ModelError, RequestError
from backend.families.family import check_preset
from backend.families.kit.parts import index_of
from backend.families.ltx.family import LTX, PIPELINES
from presets import load_preset

PRESETS = [load_preset(name) for name in ("ltx-2.0-512p", "ltx-2.3-704p", "ltx-2.3-704p-fast")]


def configs_of(preset) -> dict:
    return copy.deepcopy(preset.network_configs())


def recognised(configs):
    return LTX.recognise(index_of(configs, _class_name=PIPELINES[0]), configs)


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_each_preset_is_of_its_kind(preset):
    kind = recognised(configs_of(preset))
    assert kind.name == ("ltx-2.0" if preset.name.startswith("ltx-2.0") else "ltx-2.3")
    check_preset(kind, preset, "it")
    assert kind.takes.keys() == preset.inputs.keys() and kind.sound_rate in (16_000, 24_000, 48_000)


@pytest.mark.parametrize("part", ["vocoder", "audio_vae", "connectors", "vae", "text_encoder"])
def test_a_missing_part_is_named(part):
    configs = configs_of(PRESETS[1])
    del configs[part]
    with pytest.raises(ModelError) as caught:
        recognised(configs)
    assert part in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_other_checkpoints_are_refused_or_left_to_others():
    configs = configs_of(PRESETS[1])
    assert LTX.recognise({"_class_name": "WanPipeline"}, configs) is None
    configs["transformer"]["rope_type"] = "interleaved"
    with pytest.raises(ModelError, match="turns its heads"):
        recognised(configs)
    configs = configs_of(PRESETS[1])
    configs["transformer"]["in_channels"] = 64
    with pytest.raises(ModelError, match="128"):
        recognised(configs)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (dict(num_frames=120), "must be 8n+1; nearest: 113 or 121"),
        (dict(width=1200), "32"),
        (dict(height=0), "between 256 and 1280"),
        (dict(fps=61), "60"),
        (dict(sound_guidance=31.0), "between 0 and 30"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(given, said):
    with pytest.raises(RequestError) as caught:
        GenerationRequest.from_preset(PRESETS[1], prompt="waves", **given)
    assert said in str(caught.value)
