"""Weights are quantized while they are loaded, after LoRAs are merged, on CPU devices and on devices with their own memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import WanTransformer3DModel

from backend.models.wan.transformer import Denoiser, layer_matrix_bytes
from backend.runtime.mesh import Layout, MeshPlan
from backend.weights import read
from backend.weights.host_offload import device_bytes
from backend.weights.read import LoadProgress, Part, checkpoint_shapes, load_stacked

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


@pytest.fixture
def model(tmp_path) -> WanTransformer3DModel:
    """A transformer whose output channels have very different sizes, saved in `tmp_path`."""
    torch.manual_seed(0)
    model = WanTransformer3DModel(**CONFIG)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.split(".", 2)[-1] in layer_matrix_bytes(CONFIG, 1):
                value.mul_(4.0 ** torch.randn(len(value), 1))
    model.save_pretrained(tmp_path / "transformer")
    return model


def describe(dtype: str, quantize: str):
    layout = Layout.create(MeshPlan(), jax.devices()[:1], quantize=quantize)
    return Denoiser(CONFIG, layout).describe_weights(jnp.dtype(dtype))


@pytest.mark.parametrize("is_host", [True, False])
@pytest.mark.parametrize("quantize, step", [("int8", 0.5 / 127), ("fp8", 2**-4)])
def test_large_matrices_are_stored_in_8_bits_and_all_else_as_before(model, tmp_path, quantize, step, is_host, monkeypatch):
    if not is_host:
        monkeypatch.setattr(read, "is_host", lambda leaf: False)
    part, described = Part(tmp_path, "transformer"), describe("bfloat16", quantize)
    progress = LoadProgress(sum(place.num_bytes for place in part.places.values()), lambda event: None)
    found = load_stacked(part, described, lambda name, tensor: 2 * tensor if "attn1" in name else tensor, progress)
    state, stack = model.state_dict(), found.stacks["blocks."]
    scales = {f"{name}_scale" for name in layer_matrix_bytes(CONFIG, 1)}
    assert scales < set(stack) and {name for name, value in stack.items() if value.dtype.itemsize == 1} == set(
        layer_matrix_bytes(CONFIG, 1)
    )
    for name in stack.keys() - scales:
        for layer in range(CONFIG["num_layers"]):
            expected = state[f"blocks.{layer}.{name}"].numpy() * (2 if "attn1" in name else 1)
            value = np.asarray(stack[name][layer], np.float32)
            if name in layer_matrix_bytes(CONFIG, 1):
                value = value.T * np.asarray(stack[f"{name}_scale"][layer])[:, None]
                # int8: half a step of the largest value of the output channel; fp8: half a unit of three mantissa bits
                limit = step * (np.abs(expected).max(1, keepdims=True) if quantize == "int8" else np.abs(expected) + 1e-4)
                assert (np.abs(value - expected) <= 1.001 * limit).all(), name
            elif value.ndim == 2:
                np.testing.assert_allclose(value.T, expected, rtol=2**-8)
    jax.tree.map(lambda leaf, like: (leaf.shape, leaf.dtype) == (like.shape, like.dtype) or 1 / 0, found, described)


def test_the_checkpoint_has_no_scales_and_the_matrices_take_half_the_memory():
    plain, quantized = describe("bfloat16", "off"), describe("bfloat16", "int8")
    assert checkpoint_shapes(quantized) == checkpoint_shapes(plain)
    width, hidden, layers = 64, CONFIG["ffn_dim"], CONFIG["num_layers"]
    saved = (6 * width**2 + 2 * width * hidden) * layers
    scales = 4 * (7 * width + hidden) * layers
    assert device_bytes(plain) - device_bytes(quantized) == saved - scales
