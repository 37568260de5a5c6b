"""Weights are read from files into sharded arrays: right values, right dtypes, little memory. Broken files are named."""

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import WanTransformer3DModel
from safetensors.torch import load_file, save_file

from backend.checkpoints.checkpoint import open_checkpoint
from backend.checkpoints.tensors import TensorPlace, read_header
from backend.errors import ModelError
from backend.models import recognise
from backend.models.common.modules import to_transformers_5_name
from backend.models.wan.transformer import Denoiser
from backend.runtime.mesh import Layout, MeshPlan
from backend.settings import PROJECT_FOLDER
from backend.weights import read
from backend.weights.read import LoadProgress, Part, checkpoint_shapes, load_stacked, read_tensor
from backend.weights.stacked import stack_weights

CONFIG = dict(
    num_attention_heads=2,
    attention_head_dim=32,
    in_channels=4,
    out_channels=4,
    text_dim=16,
    freq_dim=32,
    ffn_dim=96,
    num_layers=3,
)


def silent(event) -> None:
    pass


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    """A transformer in two shards with an index, float32."""
    torch.manual_seed(0)
    model = WanTransformer3DModel(**CONFIG)
    model.save_pretrained(tmp_path / "transformer", max_shard_size="300KB")
    assert len(list((tmp_path / "transformer").glob("*.safetensors"))) > 1
    return tmp_path


def load(folder: Path, dtype: str):
    denoiser = Denoiser(CONFIG, Layout.create(MeshPlan(), jax.devices()[:1]))
    part = Part(folder, "transformer")
    described = denoiser.describe_weights(jnp.dtype(dtype))
    return load_stacked(
        part, described, lambda name, tensor: tensor, LoadProgress(sum(place.num_bytes for place in part.places.values()), silent)
    ), described


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value for path in (folder / "transformer").glob("*.safetensors") for name, value in load_file(path).items()}


def test_values_and_places_are_those_of_the_checkpoint(checkpoint):
    weights, described = load(checkpoint, "float32")
    expected = stack_weights({name: jnp.asarray(value.numpy()) for name, value in state_of(checkpoint).items()}, ["blocks."])
    jax.tree.map(np.testing.assert_array_equal, weights, expected)
    jax.tree.map(
        lambda leaf, like: (leaf.shape, leaf.dtype, leaf.sharding) == (like.shape, like.dtype, like.sharding) or 1 / 0,
        weights,
        described,
    )


def test_parts_that_diffusers_keeps_in_float32_stay_so(checkpoint):
    model = WanTransformer3DModel.from_pretrained(checkpoint / "transformer", torch_dtype=torch.bfloat16)
    expected = {name: value.dtype for name, value in model.state_dict().items()}
    weights, _ = load(checkpoint, "bfloat16")
    names = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
    for name, value in weights.outer.items():
        assert value.dtype == names[expected[name]], name
    for name, value in weights.stacks["blocks."].items():
        assert value.dtype == names[expected[f"blocks.0.{name}"]], name
    assert {"float32", "bfloat16"} == {str(value.dtype) for value in weights.stacks["blocks."].values()}
    state = model.state_dict()
    np.testing.assert_array_equal(
        np.asarray(weights.stacks["blocks."]["ffn.net.2.weight"][1], np.float32),
        state["blocks.1.ffn.net.2.weight"].float().numpy().T,
    )


def test_a_missing_shard_is_named_with_what_was_expected(checkpoint):
    shards = sorted((checkpoint / "transformer").glob("*.safetensors"))
    shards[1].unlink()
    with pytest.raises(ModelError, match=rf"transformer/{shards[1].name} is missing: .* names {len(shards)} files; copy"):
        load(checkpoint, "float32")


def test_a_file_of_another_model_is_named_with_both_shapes(checkpoint):
    path = min((checkpoint / "transformer").glob("*.safetensors"))
    state = load_file(path)
    name = next(name for name in state if name.endswith("to_q.weight"))
    save_file(state | {name: torch.zeros(7, 5)}, path)
    with pytest.raises(ModelError, match=rf"{name} has the shape \[7, 5\], and config.json makes it \[64, 64\]"):
        load(checkpoint, "float32")


def test_a_tensor_that_is_not_there_is_named(checkpoint):
    path = max((checkpoint / "transformer").glob("*.safetensors"))
    state = load_file(path)
    name = sorted(state)[0]
    save_file({key: value for key, value in state.items() if key != name}, path)
    with pytest.raises(ModelError, match=f"transformer lacks the tensor {name}: its config.json needs"):
        load(checkpoint, "float32")


def test_what_goes_wrong_in_a_reader_is_raised_and_ends_the_others(checkpoint):
    part, seen = Part(checkpoint, "transformer"), []

    def adjust(name: str, tensor: torch.Tensor) -> torch.Tensor:
        seen.append(name)
        if len(seen) == 3:
            raise ModelError("This tensor", "is broken", "take another")
        return tensor

    described = Denoiser(CONFIG, Layout.create(MeshPlan(), jax.devices()[:1])).describe_weights(jnp.dtype("float32"))
    with pytest.raises(ModelError, match="This tensor"):
        load_stacked(part, described, adjust, LoadProgress(sum(place.num_bytes for place in part.places.values()), silent))
    assert len(seen) < len(part.places) and not any(thread.name.startswith("reader") for thread in threading.enumerate())


def test_no_more_is_read_ahead_than_is_allowed_or_one_tensor(checkpoint, monkeypatch):
    part, begun, most = Part(checkpoint, "transformer"), set(), []
    monkeypatch.setattr(read, "READ_AHEAD", 20_000)

    def work(name: str, place: TensorPlace) -> None:
        begun.add(name)
        most.append(sum(part.places[name].num_bytes for name in begun))

    names = []
    for name, _ in part.read(part.places, work, LoadProgress(1, silent)):
        names.append(name)
        begun.discard(name)
    assert names == list(part.places)
    assert max(place.num_bytes for place in part.places.values()) > 20_000 >= sorted(most)[len(most) // 2]


def test_a_file_that_becomes_shorter_while_it_is_read_is_named(checkpoint):
    part = Part(checkpoint, "transformer")
    name, place = next((name, place) for name, place in part.places.items() if place.num_bytes > 100)
    place.path.write_bytes(place.path.read_bytes()[: place.start + 50])
    with pytest.raises(ModelError, match=f"{place.path.name} ended early"):
        read_tensor(place)
    with pytest.raises(ModelError, match="ended early"):
        list(part.read([name], lambda name, place: read_tensor(place), LoadProgress(1, silent)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has 0 bytes"),
        (b"<html>404</html>", "must be a complete safetensors file"),
        (b"\x05\0\0\0\0\0\0\0{a:1}", "cannot be read"),
    ],
)
def test_what_is_no_safetensors_file_is_said(tmp_path, content, said):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=said):
        read_header(tmp_path / "model.safetensors")


def write_other_parts(checkpoint: Path, *more: str, vae: str = '{"z_dim": 16}') -> None:
    """Write a checkpoint's index, and its configurations except the transformer's configuration."""
    text = json.dumps({"d_model": 8, "d_ff": 8, "num_layers": 1, "vocab_size": 8})
    index = {part: ["diffusers", "a network"] for part in ("transformer", "vae", "text_encoder", *more)}
    index["_class_name"] = "WanPipeline"
    (checkpoint / "model_index.json").write_text(json.dumps(index))
    for part, config in (("vae", vae), ("text_encoder", text)):
        (checkpoint / part).mkdir()
        (checkpoint / part / "config.json").write_text(config)


@pytest.mark.parametrize(
    ("vae", "said"),
    [
        ("{}", "vae/config.json has no z_dim: a vae needs z_dim"),
        ("[1]", "vae/config.json must be a JSON object, and is a list"),
        ("{", "vae/config.json must be JSON"),
        ('{"_class_name": ["AutoencoderKLWan"]}', "vae/config.json must have one class name as text in `_class_name`"),
    ],
)
def test_a_configuration_that_says_too_little_is_named(checkpoint, vae, said):
    write_other_parts(checkpoint, vae=vae)
    with pytest.raises(ModelError, match=said):
        recognise(open_checkpoint(checkpoint))


@pytest.mark.parametrize("name", [["WanPipeline"], {}, 3])
def test_a_pipeline_whose_name_is_no_text_is_one_sentence(checkpoint, name):
    write_other_parts(checkpoint)
    index = json.loads((checkpoint / "model_index.json").read_text()) | {"_class_name": name}
    (checkpoint / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="model_index.json must have one class name as text in `_class_name`"):
        recognise(open_checkpoint(checkpoint))


def test_experts_of_different_shape_are_refused(checkpoint):
    shutil.copytree(checkpoint / "transformer", checkpoint / "transformer_2")
    config = json.loads((checkpoint / "transformer_2" / "config.json").read_text())
    (checkpoint / "transformer_2" / "config.json").write_text(json.dumps(config | {"num_layers": 2}))
    write_other_parts(checkpoint, "transformer_2")
    with pytest.raises(ModelError, match="transformer_2/config.json says num_layers=2, and transformer/config.json says 3"):
        recognise(open_checkpoint(checkpoint))


def test_every_tensor_of_a_checkpoint_is_asked_for(checkpoint):
    _, described = load(checkpoint, "float32")
    assert {name: tuple(value.shape) for name, value in state_of(checkpoint).items()} == checkpoint_shapes(described)


@pytest.mark.slow
def test_loading_needs_little_more_than_the_arrays_themselves(tmp_path):
    """The model has 1.3 GB in shards of 200 MB. The peak is less than one shard and 150 MB above the arrays, which share the
    memory on a CPU. The load runs in a separate process.
    """
    words = [
        "--folder",
        str(tmp_path / "model"),
        "--layers",
        "2",
        "--disk",
        "float32",
        "--text-layers",
        "1",
        "--vocabulary",
        "256",
        "--shard-bytes",
        "200000000",
        "--only",
    ]
    run = [sys.executable, "-m", "benchmarks.full_size", *words]
    subprocess.run([*run, "build"], check=True, cwd=PROJECT_FOLDER, capture_output=True)
    done = subprocess.run([*run, "load", "--measure"], check=True, cwd=PROJECT_FOLDER, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["checkpoint_bytes"] > 1e9 and found["load_overhead_bytes"] < found["largest_shard_bytes"] + 150e6


@pytest.mark.parametrize("prefix", ["", "vision_model."])
def test_a_clip_encoder_is_read_by_the_names_of_transformers_4_and_5(tmp_path, prefix):
    names = ("embeddings.class_embedding", "encoder.layers.0.layer_norm1.bias")
    (tmp_path / "image_encoder").mkdir()
    save_file({prefix + name: torch.ones(3) for name in names}, tmp_path / "image_encoder" / "model.safetensors")
    part = Part(tmp_path, "image_encoder", to_transformers_5_name)
    assert set(part.places) == set(names)
    read = part.read(
        names,
        lambda name, place: read_tensor(place),
        LoadProgress(sum(place.num_bytes for place in part.places.values()), silent),
    )
    assert {name: tensor.tolist() for name, tensor in read} == dict.fromkeys(names, [1.0] * 3)
