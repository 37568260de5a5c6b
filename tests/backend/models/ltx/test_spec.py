"""A checkpoint's own configurations say which LTX-2 it is; another version's preset does not take it."""

from pathlib import Path

import pytest

from backend.checkpoints.checkpoint import Checkpoint
from backend.errors import ModelError, RequestError
from backend.models import find_family, recognise
from backend.models.ltx.spec import LTX, PIPELINES
from backend.models.spec import check_preset
from backend.schemas.request import GenerationRequest, example_request
from presets import load_preset

PRESETS = {"ltx-2.0": "ltx-2.0-512p", "ltx-2.3": "ltx-2.3-704p", "ltx-2.5": "ltx-2.5-704p"}
LTX_PRESETS = [*PRESETS.values(), "ltx-2.3-704p-fast", "ltx-2.5-704p-fast", "ltx-2.5-1024p-fast", "ltx-tiny"]
NOT_OFFERED = {
    "ltx-tiny": {"keyframes", "last_image", "control"},
    "ltx-2.5-1024p-fast": {"control", "video"},
}  # not learned; not with progressive resolution


def checkpoint_of(name: str, **changes) -> Checkpoint:
    """Return a checkpoint with the published configurations, with `changes` by part."""
    configs = load_preset(PRESETS[name]).network_configs()
    configs = {part: config | changes.get(part, {}) for part, config in configs.items()}
    index = {part: ["library", "Class"] for part in (*configs, "tokenizer", "scheduler")} | {"_class_name": PIPELINES[0]}
    return Checkpoint(folder=Path("model"), index=index, configs=configs)


@pytest.mark.parametrize("name", PRESETS)
def test_each_version_is_recognised(name):
    family, spec = recognise(checkpoint_of(name))
    assert (family, spec.name, spec.tasks) == (LTX, name, ("t2v", "i2v"))
    assert (spec.sound_rate, spec.sound_latents, spec.sound_shape) == (24_000 if name == "ltx-2.0" else 48_000, 25, (8, 16))
    assert spec.can_perturb == spec.crosses_timesteps == (name != "ltx-2.0")


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        (
            "ltx-2.5",
            {"text_encoder": {"model_type": "gemma3"}},
            "its transformer is from LTX-2.5, but its text encoder is gemma3",
        ),
        (
            "ltx-2.3",
            {"text_encoder": {"model_type": "gemma4_unified"}},
            "from an older LTX-2, but its text encoder is gemma4_unified",
        ),
        ("ltx-2.5", {"transformer": {"rope_type": "interleaved"}}, "its transformer has rope_type=interleaved"),
        ("ltx-2.3", {"vae": {"timestep_conditioning": True}}, "its decoder adds noise"),
        ("ltx-2.0", {"transformer": {"in_channels": 64}}, "its transformer takes 64 channels and its VAE makes 128"),
    ],
)
def test_what_does_not_belong_together_is_refused_with_what_is_supported(name, changes, said):
    with pytest.raises(ModelError) as caught:
        recognise(checkpoint_of(name, **changes))
    assert said in str(caught.value) and "LTX-2.0, 2.3 and 2.5" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "preset"),
    [("ltx-2.0", "ltx-2.5-704p"), ("ltx-2.3", "ltx-2.5-704p-fast"), ("ltx-2.5", "ltx-2.3-704p"), ("ltx-2.5", "ltx-2.0-512p")],
)
def test_a_preset_of_another_version_is_refused_in_one_sentence(name, preset):
    _, spec = recognise(checkpoint_of(name))
    other = load_preset(preset).series
    with pytest.raises(ModelError) as caught:
        check_preset(spec, load_preset(preset), "model")
    assert str(caught.value) == (
        f"The model model is a {name} (series: {name}), and the preset {preset} is for another kind (series: {other}); "
        f"use a preset of {name}, or another --model"
    )


@pytest.mark.parametrize("name", PRESETS)
def test_a_presets_own_version_is_taken_though_the_preset_offers_less(name):
    (_, spec), preset = recognise(checkpoint_of(name)), load_preset(PRESETS[name])
    check_preset(spec, preset, "model")
    check_preset(spec, preset.model_copy(update={"takes": {}}), "model")


@pytest.mark.parametrize("name", LTX_PRESETS)
def test_what_a_model_takes_is_what_its_preset_offers(name):
    preset = load_preset(name)
    _, spec = find_family(preset)
    assert spec.inputs.keys() - preset.inputs.keys() == NOT_OFFERED.get(name, set())
    assert preset.inputs.keys() <= spec.inputs.keys()


def test_what_is_appended_are_tokens_of_a_step_and_a_first_picture_is_none():
    preset = load_preset("ltx-2.0-512p")

    def attention_of(task, **given) -> float:
        return LTX.step_flops(preset.network_configs(), example_request(preset, task, **given), 2).attention

    plain, middle = attention_of("t2v"), dict(keyframes=("/a.png", "/b.png"), keyframe_at=(0, 60))
    assert attention_of("i2v") == plain
    assert attention_of("t2v", **middle) == attention_of("i2v", last_image="/b.png") == pytest.approx(plain * (17 / 16) ** 2)
    assert attention_of("t2v", control="/c.mp4") == 4 * plain
    assert attention_of("i2v", control="/c.mp4", control_downscale=2) == pytest.approx(plain * (5 / 4) ** 2)


def recognised(configs):
    return LTX.read_spec({part: ["diffusers", part] for part in configs}, configs)


@pytest.mark.parametrize("part", ["vocoder", "audio_vae", "connectors", "vae", "text_encoder"])
def test_a_missing_part_is_named(part):
    configs = load_preset("ltx-2.3-704p").network_configs()
    del configs[part]
    with pytest.raises(ModelError) as caught:
        recognised(configs)
    assert part in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


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
        GenerationRequest.from_preset(load_preset("ltx-2.3-704p"), prompt="waves", **given)
    assert said in str(caught.value)
