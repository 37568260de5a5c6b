"""A checkpoint's own configurations state which HunyuanVideo 1.5 it is. Other checkpoints are refused with the list."""

import json
from pathlib import Path

import pytest

from backend.checkpoints.checkpoint import Checkpoint
from backend.errors import ModelError
from backend.models import recognise
from backend.models.hunyuan.spec import HUNYUAN, NEEDED_ENTRIES, SPECS
from backend.models.spec import check_preset
from presets import load_preset
from presets.loader import ARCHITECTURES_FOLDER

T2V, I2V = "HunyuanVideo15Pipeline", "HunyuanVideo15ImageToVideoPipeline"
PRESETS = {  # the presets' architectures repeat the published checkpoints' configurations
    "hunyuanvideo-1.5-t2v": "hunyuanvideo-1.5-t2v-720p",
    "hunyuanvideo-1.5-i2v": "hunyuanvideo-1.5-i2v-480p",
    "hunyuanvideo-1.5-i2v-meanflow": "hunyuanvideo-1.5-i2v-480p-fast",
    "hunyuanvideo-1.5-ti2v": "hunyuanvideo-1.5-i2v-480p",  # none is published: its transformer's `task_type` is the difference
}


def checkpoint_of(name: str, index=None, **changes) -> Checkpoint:
    configs = load_preset(PRESETS[name]).network_configs()
    if name.endswith("ti2v"):
        configs["transformer"] = configs["transformer"] | {"task_type": "ti2v"}
    configs = {part: config | changes.get(part, {}) for part, config in configs.items()}
    own = {part: ["library", "Class"] for part in configs} | {"_class_name": T2V if name.endswith("-t2v") else I2V}
    return Checkpoint(folder=Path("model"), index=own | (index or {}), configs=configs)


@pytest.mark.parametrize("name", PRESETS)
def test_each_kind_is_recognised(name):
    family, spec = recognise(checkpoint_of(name))
    assert (family, spec.name) == (HUNYUAN, name)
    assert (spec.scales, spec.patch, spec.num_experts, spec.boundary) == ((16, 4), 1, 1, None)
    assert set(PRESETS) == {spec.name for spec in SPECS}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"index": {"_class_name": "HunyuanVideoPipeline"}}, "its pipeline is HunyuanVideoPipeline"),  # the first HunyuanVideo
        ({"transformer": {"_class_name": "HunyuanVideoTransformer3DModel"}}, "it has a HunyuanVideoTransformer3DModel"),
        ({"vae": {"_class_name": "AutoencoderKLHunyuanVideo"}}, "it has a AutoencoderKLHunyuanVideo"),
        ({"transformer": {"in_channels": 33}}, "its transformer takes 33 channels and its VAE makes 32"),
        ({"transformer": {"patch_size": 2}}, "its transformer has patches of 2 x 2 x 1 latents"),
        ({"transformer": {"use_meanflow": True}}, "it is a step-distilled model for t2v"),
        ({"text_encoder": {"hidden_size": 8}}, "its text_encoder makes 8 channels and its transformer takes 3584"),
    ],
)
def test_anything_else_is_refused_with_what_is_supported(changes, said):
    with pytest.raises(ModelError) as caught:
        recognise(checkpoint_of("hunyuanvideo-1.5-t2v", **changes))
    assert said in str(caught.value)
    assert "HunyuanVideo 1.5 T2V and I2V" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("part", NEEDED_ENTRIES)
def test_a_missing_part_or_entry_is_named(part):
    with pytest.raises(ModelError, match=f"model_index.json names no {part}: a checkpoint needs transformer, vae"):
        recognise(checkpoint_of("hunyuanvideo-1.5-i2v", index={part: [None, None]}))
    whole = checkpoint_of("hunyuanvideo-1.5-i2v")
    entry = NEEDED_ENTRIES[part][-1]
    del whole.configs[part][entry]
    with pytest.raises(ModelError, match=f"{part}/config.json has no {entry}"):
        recognise(whole)


@pytest.mark.parametrize(
    ("preset", "name", "said"),
    [
        ("wan2.1-t2v-14b-720p", "hunyuanvideo-1.5-t2v", "vae_scale_spatial: 16"),
        ("wan2.1-i2v-14b-720p", "hunyuanvideo-1.5-i2v", "vae_scale_spatial: 16"),
        ("wan2.2-ti2v-5b-720p", "hunyuanvideo-1.5-t2v", "tasks: t2v"),
        ("hunyuanvideo-1.5-i2v-720p", "hunyuanvideo-1.5-t2v", "tasks: t2v"),
    ],
)
def test_a_checkpoint_of_another_kind_than_the_presets_is_refused(preset, name, said):
    _, spec = recognise(checkpoint_of(name))
    with pytest.raises(ModelError) as caught:
        check_preset(spec, load_preset(preset), "model")
    assert f"is a {name} ({said})" in str(caught.value) and preset in str(caught.value)


def test_a_wan_checkpoint_is_refused_for_a_preset_of_ours():
    """The 5B compresses as much and accepts text alone too, but its tokens are larger."""
    from backend.models.wan.spec import SPECS as WAN_SPECS

    spec = next(spec for spec in WAN_SPECS if spec.name == "wan2.2-ti2v")
    spec = type(spec)(**vars(spec) | {"scales": (16, 4)})
    with pytest.raises(ModelError, match=r"is a wan2.2-ti2v \(patch: 2\).*hunyuanvideo-1.5-t2v-720p"):
        check_preset(spec, load_preset("hunyuanvideo-1.5-t2v-720p"), "model")


def test_telling_shapes_are_those_of_diffusers_own_modules():
    torch = pytest.importorskip("torch")
    from diffusers import AutoencoderKLHunyuanVideo15, HunyuanVideo15Transformer3DModel
    from transformers import Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel, T5Config, T5EncoderModel

    configs = load_preset("hunyuanvideo-1.5-i2v-480p-fast").network_configs()
    with torch.device("meta"):
        made = {
            "transformer": HunyuanVideo15Transformer3DModel.from_config(configs["transformer"]),
            "vae": AutoencoderKLHunyuanVideo15.from_config(configs["vae"]),
            "text_encoder": Qwen2_5_VLTextModel(Qwen2_5_VLTextConfig(**configs["text_encoder"])),
            "text_encoder_2": T5EncoderModel(T5Config(**configs["text_encoder_2"])),
        }
    for part, module in made.items():
        state = {name: tuple(value.shape) for name, value in module.state_dict().items()}
        told = HUNYUAN.distinctive_shapes(configs, part)
        assert told and {name: state.get(name) for name in told} == told


def test_the_makers_names_lead_to_all_that_their_loras_change():
    names = {
        "transformer_blocks.3.attn.to_q": "double_blocks.3.img_attn_q",
        "transformer_blocks.3.attn.add_v_proj": "double_blocks.3.txt_attn_v",
        "transformer_blocks.3.attn.to_out.0": "double_blocks.3.img_attn_proj",
        "transformer_blocks.3.attn.to_add_out": "double_blocks.3.txt_attn_proj",
        "transformer_blocks.3.ff.net.0.proj": "double_blocks.3.img_mlp.fc1",
        "transformer_blocks.3.ff_context.net.2": "double_blocks.3.txt_mlp.fc2",
        "transformer_blocks.3.norm1.linear": "double_blocks.3.img_mod.linear",
        "transformer_blocks.3.norm1_context.linear": "double_blocks.3.txt_mod.linear",
        "x_embedder.proj": "img_in.proj",
        "context_embedder.token_refiner.refiner_blocks.0.attn.to_out.0": "txt_in.individual_token_refiner.blocks.0.self_attn_proj",
        "norm_out.linear": "norm_out.linear",
    }
    assert {name: HUNYUAN.original_name(name) for name in names} == names


def test_comfyuis_names_lead_there_too_and_to_a_third_where_it_has_query_key_and_value_in_one():
    block, refiner = "transformer_blocks.3", "context_embedder.token_refiner.refiner_blocks.0"
    assert HUNYUAN.lora_names(f"{block}.attn.add_k_proj")[1:] == (
        ("double_blocks.3.txt_attn.qkv", 1, 3),
        ("double_blocks.3.txt_attn_qkv", 1, 3),
    )
    assert ("txt_in.individual_token_refiner.blocks.0.self_attn_qkv", 2, 3) in HUNYUAN.lora_names(f"{refiner}.attn.to_v")
    names = {
        f"{block}.attn.to_out.0": "double_blocks.3.img_attn.proj",
        f"{block}.norm1.linear": "double_blocks.3.img_mod.lin",
        f"{block}.ff.net.0.proj": "double_blocks.3.img_mlp.0",
        f"{block}.ff_context.net.2": "double_blocks.3.txt_mlp.2",
        f"{refiner}.ff.net.2": "txt_in.individual_token_refiner.blocks.0.mlp.2",
    }
    assert {name: HUNYUAN.lora_names(name)[1] for name in names} == {name: (other, 0, 1) for name, other in names.items()}


def test_every_preset_has_its_architecture():
    found = {path.stem for path in ARCHITECTURES_FOLDER.glob("transformer-hunyuanvideo*.json")}
    used = {f"transformer-{load_preset(name).architecture['transformer']}" for name in PRESETS.values()}
    assert used < found
    for path in ARCHITECTURES_FOLDER.glob("*hunyuanvideo*.json"):
        assert json.loads(path.read_text())["_class_name"].endswith(("HunyuanVideo15", "HunyuanVideo15Transformer3DModel"))
