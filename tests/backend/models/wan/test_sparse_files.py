"""Transformers with sparse attention load from their authors' files as from diffusers' layout: each tensor once, equal values."""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import WanTransformer3DModel
from jax.sharding import PartitionSpec as P
from safetensors.torch import save_file

from backend.checkpoints.checkpoint import Checkpoint, open_checkpoint
from backend.checkpoints.single_file import assign_parts
from backend.errors import ModelError, RequestError
from backend.models import complete_checkpoint, recognise
from backend.models.causal_wan.spec import CAUSAL_WAN
from backend.models.wan.original import map_file_names, original_tensor_name
from backend.models.wan.sparse_attention import add_sparse_weights, make_sparse_plan
from backend.models.wan.spec import NEEDED_ENTRIES, WAN
from backend.models.wan.transformer import Denoiser
from backend.runtime.mesh import Layout, MeshPlan
from backend.schemas.request import example_request
from backend.weights.read import LoadProgress, Part, checkpoint_shapes, load_stacked
from presets import load_preset

CONFIG = dict(num_attention_heads=2, attention_head_dim=128, in_channels=16, out_channels=16, text_dim=16, freq_dim=32, ffn_dim=384,
              num_layers=2)  # fmt: skip
VAES = {16: {"z_dim": 16}, 48: {"z_dim": 48, "scale_factor_spatial": 16, "scale_factor_temporal": 4}}
MATRICES = (".q", ".k", ".v", ".o", ".ffn.0", ".ffn.2")


def random_state(method, **changes) -> dict[str, torch.Tensor]:
    """Return random weights in bfloat16 with diffusers' names, SLA's projection in float32."""
    torch.manual_seed(0)
    model = WanTransformer3DModel(**CONFIG | changes)
    add_sparse_weights(model, method)
    return {
        name: torch.randn(value.shape).to(torch.float32 if "proj_l" in name else torch.bfloat16)
        for name, value in model.state_dict().items()
    }


def turbo_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors as TurboDiffusion saves them: the original names, the first convolution's kernel as a matrix."""
    own = {original_tensor_name(name): value for name, value in state.items()}
    assert own["blocks.1.self_attn.attn_op.local_attn.proj_l.weight"].shape == (128, 128)
    return own | {"patch_embedding.weight": own["patch_embedding.weight"].flatten(1)}


def checkpoint_of(folder: Path, files=None, experts: int = 1, channels: int = 16, pipeline: str = "WanPipeline") -> Checkpoint:
    """Return a checkpoint with the configurations of a published one."""
    parts = ["transformer", "transformer_2"][:experts]
    index = {"_class_name": pipeline} | {part: ["diffusers", part] for part in (*parts, *NEEDED_ENTRIES)}
    configs = {part: dict.fromkeys(entries, 1) for part, entries in NEEDED_ENTRIES.items()}
    vae = VAES[48 if channels == 48 else 16]
    configs |= {part: CONFIG | {"in_channels": channels} for part in parts} | {"vae": vae}
    return Checkpoint(folder=folder, index=index, configs=configs, transformer_files=files or {})


def loaded(checkpoint: Checkpoint, part: str = "transformer") -> tuple[dict[str, np.ndarray], set[str]]:
    """Return the loaded weights in float32 by diffusers' names, and the names of the file's tensors that were not used."""
    denoiser = Denoiser(checkpoint.configs[part], Layout.create(MeshPlan(), jax.devices()[:1]))
    described = denoiser.describe_weights(jnp.dtype("bfloat16"))
    source = Part(checkpoint, part, map_file_names(checkpoint_shapes(described)))
    weights = load_stacked(source, described, lambda name, tensor: tensor, LoadProgress(1, lambda event: None))
    found = dict(weights.outer)
    for name, stack in weights.stacks["blocks."].items():
        found |= {f"blocks.{layer}.{name}": value.T if value.ndim == 2 else value for layer, value in enumerate(stack)}
    assert all(value.dtype == "float32" for name, value in found.items() if "proj_l" in name)
    return {name: np.asarray(value, np.float32) for name, value in found.items()}, source.places.keys() - found.keys()


def assert_equal(found: dict[str, np.ndarray], state: dict[str, torch.Tensor]) -> None:
    assert found.keys() == state.keys()
    for name, value in state.items():
        np.testing.assert_array_equal(found[name], value.float().numpy(), name)


@pytest.mark.parametrize("channels", [16, 36])
def test_turbowan_loads_like_diffusers(channels, tmp_path):
    state = random_state("sla", in_channels=channels)
    torch.save(turbo_names(state), tmp_path / "turbo.pth")
    experts = 2 if channels == 36 else 1
    files = assign_parts([tmp_path / "turbo.pth"] * experts)
    checkpoint = complete_checkpoint(checkpoint_of(tmp_path, files, experts, channels))
    _, spec = recognise(checkpoint)
    assert (spec.sparse_attention, spec.num_experts) == ("sla", experts) and spec.tasks == (
        ("i2v",) if experts == 2 else ("t2v",)
    )
    for part in files:
        found, unused = loaded(checkpoint, part)
        assert_equal(found, state)
        assert not unused


def test_quantised_turbowan_loads_like_the_product_of_numbers_and_scales(tmp_path):
    state = random_state("sla")
    own, names = turbo_names(state), {original_tensor_name(name): name for name in state}
    for name in [name for name in own if name.startswith("blocks.") and name.removesuffix(".weight").endswith(MATRICES)]:
        stem, (rows, columns) = name.removesuffix(".weight"), own.pop(name).shape
        numbers = torch.randint(-128, 128, (rows, columns)).to(torch.int8)
        scale = torch.rand(-(-rows // 128), -(-columns // 128))
        own |= {f"{stem}.int8_weight": numbers, f"{stem}.scale": scale}
        tiles = torch.kron(scale, torch.ones(128, 128))[:rows, :columns]
        state[names[name]] = (numbers.float() * tiles).to(torch.bfloat16)
    assert sum(name.endswith(".int8_weight") for name in own) == 20
    torch.save(own, tmp_path / "turbo-quant.pth")
    checkpoint = complete_checkpoint(checkpoint_of(tmp_path, assign_parts([tmp_path / "turbo-quant.pth"])))
    found, unused = loaded(checkpoint)
    assert_equal(found, state)
    assert not unused


@pytest.mark.parametrize("prefix", ["blocks.{}.attn1.", "blocks.{}."])
def test_fastwan_loads_with_either_name_of_its_gate(prefix, tmp_path):
    state = {name: value.float() for name, value in random_state("vsa").items()}
    saved = {}
    for name, value in state.items():
        head, gate, tail = name.partition("to_gate_compress")
        saved[prefix.format(head.split(".")[1]) + gate + tail if gate else name] = value
    (tmp_path / "transformer").mkdir()
    save_file(saved, tmp_path / "transformer" / "diffusion_pytorch_model.safetensors")
    checkpoint = complete_checkpoint(checkpoint_of(tmp_path, pipeline="WanDMDPipeline"))
    _, spec = recognise(checkpoint)
    assert (spec.name, spec.sparse_attention) == ("wan2.1-t2v", "vsa")
    found, unused = loaded(checkpoint)
    assert_equal(found, {name: value.bfloat16() for name, value in state.items()})
    assert not unused
    names = {name: "model-1.safetensors" for name in saved}
    (tmp_path / "transformer" / "diffusion_pytorch_model.safetensors").unlink()
    index = tmp_path / "transformer" / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}))
    assert recognise(checkpoint_of(tmp_path))[1].sparse_attention == "vsa"
    for broken in (7, ["blocks.0"], {"blocks.0": 3}):
        index.write_text(json.dumps({"weight_map": broken}))
        with pytest.raises(ModelError, match="weight_map must be an object"):
            complete_checkpoint(checkpoint_of(tmp_path))


def test_a_dense_checkpoint_and_one_without_weights_stay_dense(tmp_path):
    (tmp_path / "transformer").mkdir()
    assert recognise(checkpoint_of(tmp_path))[1].sparse_attention is None
    save_file(random_state(None), tmp_path / "transformer" / "x.safetensors")
    assert recognise(checkpoint_of(tmp_path))[1].sparse_attention is None
    fastwan_5b = recognise(checkpoint_of(tmp_path, channels=48, pipeline="WanDMDPipeline"))[1]
    assert (fastwan_5b.name, fastwan_5b.sparse_attention) == ("wan2.2-ti2v", None)


def test_an_unknown_method_is_refused(tmp_path):
    checkpoint = checkpoint_of(tmp_path)
    checkpoint.configs["transformer"]["sparse_attention"] = "other"
    with pytest.raises(ModelError, match="its transformer has the sparse attention other"):
        recognise(checkpoint)


def test_a_block_of_queries_never_crosses_from_chip_to_chip():
    assert make_sparse_plan({"sparse_attention": "sla", "sparse_blocks": [64, 48]}, 0.1).block_kv == 48
    with pytest.raises(ModelError, match=r"says sparse_blocks=\[96, 64\], but the number of queries in a block must divide 128"):
        make_sparse_plan({"sparse_attention": "sla", "sparse_blocks": [96, 64]}, 0.1)
    with pytest.raises(ModelError, match=r"says sparse_blocks=\[8, 8, 4\], but the number of queries in a block must divide 128"):
        make_sparse_plan({"sparse_attention": "vsa", "sparse_blocks": [8, 8, 4]}, 0.1)


def test_sol_attn_is_refused_for_a_model_that_was_trained_with_another_method():
    refusal = (
        "sparse was given, but this model was trained with another sparse attention (vsa), which keeps sparse_keep=0.1 of the "
        "blocks; leave it out"
    )
    with pytest.raises(RequestError, match=f"^{re.escape(refusal)}$"):
        make_sparse_plan({"sparse_attention": "vsa"}, 0.1, 1.5)


@pytest.mark.parametrize(
    ("method", "sizes"), [("sla", [0, 64]), ("sla", [64]), ("sla", "64"), ("vsa", [4, 4]), ("vsa", [4, 4, 0.5]), ("vsa", None)]
)
def test_block_sizes_that_are_no_sizes_are_refused(method, sizes):
    with pytest.raises(ModelError, match=r"says sparse_blocks=.*, but it must have \d positive whole numbers"):
        make_sparse_plan({"sparse_attention": method, "sparse_blocks": sizes}, 0.1)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_live_models_refuse_a_file_with_sparse_attention(suffix, tmp_path):
    path, save = tmp_path / f"turbo{suffix}", torch.save if suffix == ".pth" else save_file
    save({name: value.contiguous() for name, value in turbo_names(random_state("sla")).items()}, path)
    with pytest.raises(
        ModelError, match=f"turbo{suffix} was trained with sparse attention, and live models attend to all tokens"
    ):
        complete_checkpoint(checkpoint_of(tmp_path, assign_parts([path])), load_preset("wan2.1-live-1.3b-480p"))


@pytest.mark.parametrize("name", ["turbowan2.1-t2v-1.3b-480p", "turbowan2.2-i2v-a14b-720p"])
def test_estimates_count_the_kept_keys(name):
    preset = load_preset(name)
    configs = preset.network_configs()
    dense = configs | {"transformer": {**configs["transformer"], "sparse_attention": None}}
    sparse, whole = (WAN.step_flops(each, example_request(preset), 1) for each in (configs, dense))
    assert sparse.attention == pytest.approx(0.1 * whole.attention, rel=1e-4) and sparse.matmul == whole.matmul


@pytest.mark.parametrize(("folder", "method"), [("Wan2.2-NVFP4-Sparse", "sla-map"), ("Wan2.2-NVFP4", None)])
def test_sparse_fp4_files_use_the_block_map(folder, method, tmp_path):
    """The block map has no weights. The name of the file or its folder tells that a file was trained with it."""
    own = {original_tensor_name(name): value for name, value in random_state(None).items()}
    stem = "blocks.0.self_attn.q"
    scales = {
        "alpha": torch.ones(()),
        "input_global_scale": torch.ones(()),
        "weight_scale": torch.ones(256, 16).to(torch.float8_e4m3fn),
    }
    own |= {f"{stem}.weight": torch.full((256, 128), 0x22, dtype=torch.uint8)} | {
        f"{stem}.{name}": value for name, value in scales.items()
    }
    path = tmp_path / folder / "high.safetensors"
    path.parent.mkdir()
    save_file(own, path)
    checkpoint = complete_checkpoint(checkpoint_of(tmp_path, assign_parts([path])))
    assert recognise(checkpoint)[1].sparse_attention == method
    found, unused = loaded(checkpoint)
    assert (found["blocks.0.attn1.to_q.weight"] == 1).all() and not unused


def test_a_pytorch_file_without_sparse_attention_is_causal_wan(tmp_path):
    torch.save({original_tensor_name(name): value for name, value in random_state(None).items()}, tmp_path / "x.pth")
    assert recognise(checkpoint_of(tmp_path, assign_parts([tmp_path / "x.pth"])))[0] is CAUSAL_WAN


def test_the_projection_is_replicated_and_the_gate_divided_like_the_query():
    role, layout = Denoiser.matrix_role, Layout.create(MeshPlan(), jax.devices()[:1])
    assert role("attn1.proj_l.weight") == "replicated" and role("attn1.to_gate_compress.weight") == role("attn1.to_q.weight")
    assert layout.stacked_weight("attn1.proj_l.weight", (40, 128, 128), "replicated") == P()


def test_a_folder_with_a_pickle_of_another_suffix_is_no_checkpoint(tmp_path):
    """Wan's original folders have .pth files of other networks, so only a source names such a file."""
    torch.save(turbo_names(random_state("sla")), tmp_path / "Wan2.1_VAE.pth")
    with pytest.raises(ModelError, match=r"model_index\.json is missing"):
        open_checkpoint(tmp_path)
