"""A checkpoint's own configurations state which Wan model it is. Other checkpoints are refused with the list."""

from pathlib import Path

import pytest

from backend.checkpoints.checkpoint import Checkpoint
from backend.errors import ModelError
from backend.models import recognise
from backend.models.spec import check_preset
from backend.models.wan.spec import NEEDED_ENTRIES, SPECS
from presets import load_preset

TWO = {"transformer_2": ["diffusers", "WanTransformer3DModel"]}
VAE_21 = {"z_dim": 16}  # published before diffusers wrote the scales into the configuration
VAE_22 = {"z_dim": 48, "scale_factor_spatial": 16, "scale_factor_temporal": 4}
CHECKPOINTS = {  # the configurations on the Hub: model_index.json, transformer, VAE
    "wan2.1-t2v": ({}, {"in_channels": 16}, VAE_21),
    "wan2.1-i2v": ({}, {"in_channels": 36, "image_dim": 1280}, VAE_21),
    "wan2.1-flf2v": ({}, {"in_channels": 36, "image_dim": 1280, "pos_embed_seq_len": 514}, VAE_21),
    "wan2.2-t2v": (TWO | {"boundary_ratio": 0.875}, {"in_channels": 16, "image_dim": None}, VAE_21),
    "wan2.2-i2v": (TWO | {"boundary_ratio": 0.9}, {"in_channels": 36, "image_dim": None}, VAE_21),
    "wan2.2-ti2v": ({"expand_timesteps": True}, {"in_channels": 48}, VAE_22),
}


def spec_of(name: str, index=None, transformer=None, vae=None):
    own_index, own_transformer, own_vae = CHECKPOINTS[name]
    parts = {part: ["diffusers", part] for part in NEEDED_ENTRIES}
    index = {"_class_name": "WanPipeline", "transformer_2": [None, None]} | parts | own_index | (index or {})
    configs = {part: dict.fromkeys(entries, 1) for part, entries in NEEDED_ENTRIES.items()}
    configs["transformer"] |= own_transformer | (transformer or {})
    configs["vae"] |= own_vae | (vae or {})
    _, spec = recognise(Checkpoint(folder=Path("model"), index=index, configs=configs))
    return spec


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_each_family_is_recognised(name):
    assert spec_of(name).name == name
    assert set(CHECKPOINTS) == {spec.name for spec in SPECS}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"index": {"_class_name": "StableDiffusionPipeline"}}, "its pipeline is StableDiffusionPipeline"),
        ({"transformer": {"_class_name": "WanVACETransformer3DModel"}}, "it has a WanVACETransformer3DModel"),
        ({"vae": {"_class_name": "AutoencoderKL"}}, "it has a AutoencoderKL"),
        ({"transformer": {"in_channels": 17}}, "its transformer takes 17 channels and its VAE makes 16"),
        ({"transformer": {"in_channels": 36}}, "conditioning=channels, num experts=1, has image encoder=False"),
        ({"index": {**TWO, "expand_timesteps": True}}, "conditioning=first_frame, num experts=2"),
    ],
)
def test_anything_else_is_refused_with_what_is_supported(changes, said):
    with pytest.raises(ModelError) as caught:
        spec_of("wan2.1-t2v", **changes)
    assert said in str(caught.value)
    assert "supported are Wan 2.1 T2V, I2V and FLF2V, Wan 2.2 T2V-A14B, I2V-A14B and TI2V-5B" in str(caught.value)


@pytest.mark.parametrize(
    ("preset", "family", "said"),
    [
        ("wan2.1-t2v-14b-720p", "wan2.1-i2v", "tasks: i2v"),
        ("wan2.1-t2v-14b-720p", "wan2.2-t2v", "num_experts: 2"),
        ("wan2.1-i2v-14b-720p", "wan2.1-flf2v", "inputs: last_image=must"),
        ("wan2.2-i2v-a14b-720p", "wan2.1-i2v", "num_experts: 1"),
        ("wan2.1-t2v-14b-720p", "wan2.2-ti2v", "vae_scale_spatial: 16"),
    ],
)
def test_a_checkpoint_of_another_kind_than_the_presets_is_refused(preset, family, said):
    with pytest.raises(ModelError) as caught:
        check_preset(spec_of(family), load_preset(preset), "model")
    assert f"is a {family} ({said})" in str(caught.value) and preset in str(caught.value)


def test_a_checkpoint_of_the_presets_kind_is_taken():
    spec = spec_of("wan2.2-i2v")
    assert spec.boundary == 0.9
    check_preset(spec, load_preset("wan2.2-i2v-a14b-480p-fast"), "model")
