"""The authors' file of a transformer loads like diffusers' layout: each tensor once, equal values."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import HunyuanVideo15Transformer3DModel
from safetensors.torch import save_file

from backend.checkpoints.checkpoint import Checkpoint
from backend.checkpoints.single_file import assign_parts
from backend.errors import ModelError
from backend.models import complete_checkpoint
from backend.models.hunyuan.spec import HUNYUAN
from backend.models.hunyuan.transformer import Denoiser
from backend.runtime.mesh import Layout, MeshPlan
from backend.weights.read import LoadProgress, Part, load_stacked, read_tensor
from presets import load_preset

SPARSE = "hunyuanvideo-1.5-i2v-720p-sparse"
SMALL = dict(num_attention_heads=2, attention_head_dim=16, num_layers=2, text_embed_dim=32, text_embed_2_dim=24, image_embed_dim=16,
             rope_axes_dim=(4, 6, 6), mlp_ratio=2.0)  # fmt: skip
# Names of the authors that LoRAs do not need: diffusers, scripts/convert_hunyuan_video1_5_to_diffusers.py
OTHERS = {
    "time_embed.timestep_embedder_r.linear_1": "time_r_in.mlp.0", "time_embed.timestep_embedder_r.linear_2": "time_r_in.mlp.2",
    "context_embedder.time_text_embed.timestep_embedder.linear_1": "txt_in.t_embedder.mlp.0",
    "context_embedder.time_text_embed.timestep_embedder.linear_2": "txt_in.t_embedder.mlp.2",
    "context_embedder.time_text_embed.text_embedder.linear_1": "txt_in.c_embedder.linear_1",
    "context_embedder.time_text_embed.text_embedder.linear_2": "txt_in.c_embedder.linear_2",
    "norm_out.linear": "final_layer.adaLN_modulation.1",
}  # fmt: skip


def random_state(config) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    with torch.device("meta"):
        shapes = HunyuanVideo15Transformer3DModel.from_config(config).state_dict()
    return {name: torch.randn(value.shape) for name, value in shapes.items()}


def makers_state(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors as the authors save them: the refiner's query, key and value joined, the last modulation swapped."""
    own, joined = {}, {}
    for name, value in state.items():
        stem, _, kind = name.rpartition(".")
        other = OTHERS.get(stem) or HUNYUAN.original_name(stem)
        if "individual_token_refiner" in other and other.endswith(("self_attn_q", "self_attn_k", "self_attn_v")):
            joined.setdefault(f"{other[:-1]}qkv.{kind}", []).append(value)
        else:
            own[f"{other}.{kind}"] = torch.cat(value.chunk(2)[::-1]) if stem == "norm_out.linear" else value
    assert len(joined) == 4 and all(len(parts) == 3 for parts in joined.values())
    assert not own.keys() & state.keys()
    return own | {name: torch.cat(parts) for name, parts in joined.items()}


def checkpoint_of(path: Path, config) -> Checkpoint:
    index = {"_class_name": "HunyuanVideo15ImageToVideoPipeline"}
    return Checkpoint(folder=path.parent, index=index, configs={"transformer": config}, transformer_files=assign_parts([path]))


@pytest.mark.parametrize("use_meanflow", [False, True])
def test_the_authors_file_loads_like_diffusers(use_meanflow, tmp_path):
    config = load_preset(SPARSE).network_configs()["transformer"] | SMALL | {"use_meanflow": use_meanflow}
    del config["sparse_attention"]
    state = random_state(config)
    path = tmp_path / "720p_i2v_distilled_sparse" / "diffusion_pytorch_model.safetensors"
    path.parent.mkdir()
    save_file(makers_state(state), path)
    checkpoint = complete_checkpoint(checkpoint_of(path, config))
    assert checkpoint.configs["transformer"]["sparse_attention"] == "ssta"
    assert complete_checkpoint(checkpoint).tensors("transformer") == checkpoint.tensors("transformer")
    part = Part(checkpoint, "transformer")
    assert part.places.keys() == state.keys()
    described = Denoiser(config, Layout.create(MeshPlan(), jax.devices()[:1])).describe_weights(jnp.dtype("float32"))
    weights = load_stacked(part, described, lambda name, tensor: tensor, LoadProgress(1, lambda event: None))
    found = dict(weights.outer)
    for name, stack in weights.stacks["transformer_blocks."].items():
        found |= {
            f"transformer_blocks.{layer}.{name}": value.T if value.ndim == 2 else value for layer, value in enumerate(stack)
        }
    assert found.keys() == state.keys()
    for name, value in state.items():
        np.testing.assert_array_equal(np.asarray(found[name]), value.numpy(), name)


@pytest.mark.parametrize("by_row", [False, True])
def test_scales_are_divided_and_swapped_with_their_numbers(by_row, tmp_path):
    """The numbers of a scaled file are compared with a file in bfloat16 that has their products."""
    config = load_preset(SPARSE).network_configs()["transformer"] | SMALL
    own = makers_state(random_state({name: value for name, value in config.items() if name != "sparse_attention"}))
    products, scaled = dict(own), dict(own)
    for name in [name for name in own if name.endswith((".self_attn_qkv.weight", "final_layer.adaLN_modulation.1.weight"))]:
        rows = torch.arange(1, 1 + len(own[name]))[:, None] / 8 if by_row else torch.tensor(0.5)
        scaled[name] = own[name].to(torch.float8_e4m3fn)
        scaled[name.removesuffix("weight") + "scale_weight"] = rows
        products[name] = scaled[name].float() * rows
    found = []
    for name, state in (("plain", products), ("scaled", scaled)):
        save_file(state, tmp_path / f"{name}.safetensors")
        places = complete_checkpoint(checkpoint_of(tmp_path / f"{name}.safetensors", config)).tensors("transformer")
        found.append({name: read_tensor(place) for name, place in places.items()})
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name]), name


def test_a_joined_tensor_that_cannot_be_divided_is_refused(tmp_path):
    config = load_preset(SPARSE).network_configs()["transformer"] | SMALL
    own = makers_state(random_state({name: value for name, value in config.items() if name != "sparse_attention"}))
    joined = next(name for name in own if name.endswith(".self_attn_qkv.weight"))
    save_file(own | {joined: own[joined][:-1].clone()}, tmp_path / "x.safetensors")
    with pytest.raises(ModelError, match=r"joined query, key and value as F32 \[95, 32\]: the number of rows"):
        complete_checkpoint(checkpoint_of(tmp_path / "x.safetensors", config))


def test_diffusers_names_are_left_and_other_files_refused(tmp_path):
    config = load_preset(SPARSE).network_configs()["transformer"] | SMALL
    state = random_state({name: value for name, value in config.items() if name != "sparse_attention"})
    save_file(state, tmp_path / "dense.safetensors")
    checkpoint = complete_checkpoint(checkpoint_of(tmp_path / "dense.safetensors", config))
    places = checkpoint.tensors("transformer")
    assert places.keys() == state.keys() and not places["norm_out.linear.weight"].swaps_halves
    save_file({"blocks.0.self_attn.q.weight": torch.zeros(2, 2)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelError, match=r"other\.safetensors has no transformer of HunyuanVideo 1\.5"):
        complete_checkpoint(dataclasses.replace(checkpoint, transformer_files=assign_parts([tmp_path / "other.safetensors"])))
