"""The programs of every kind of Wan model can be built with quantized matrices."""

import jax
import jax.numpy as jnp
import pytest

from backend.models.wan.transformer import layer_matrix_bytes
from backend.pipeline.load import describe_model
from backend.pipeline.warm_up import calls
from backend.runtime.program import Compilation
from backend.schemas.request import example_request
from presets import load_preset

PRESETS = (
    *("wan-tiny", "wan-tiny-vace", "wan-tiny-animate", "wan-live-tiny", "matrix-game-2.0", "wan2.2-animate-14b"),
    *("turbowan2.1-t2v-1.3b-480p", "fastwan2.1-t2v-1.3b-480p"),
)


@pytest.mark.parametrize("name", PRESETS)
def test_the_large_matrices_of_the_layers_are_quantized_and_nothing_else(name):
    request = example_request(load_preset(name), quantize="int8")
    plain, model = (
        describe_model(preset, jax.devices()[:1], lambda program, lowered: Compilation(None))
        for preset in (load_preset(name), request.resolved_preset)
    )
    (network,) = (network for network in model.networks if network.expert is not None)
    (before,) = (network for network in plain.networks if network.expert is not None)
    width = {"num_attention_heads": 1, "attention_head_dim": 1, "ffn_dim": 1}
    matrices = layer_matrix_bytes(load_preset(name).network_configs()["transformer"] | width, 1).keys()
    for prefix, stack in network.described.stacks.items():
        has_blocks = prefix in ("blocks.", "vace_blocks.")
        quantized = {one for one, leaf in stack.items() if leaf.dtype == jnp.int8}
        assert quantized == (set(matrices) if has_blocks else set()), prefix
        scales = {f"{one}_scale" for one in quantized}
        others = {one: leaf.dtype for one, leaf in stack.items() if one not in quantized | scales}
        assert others == {one: leaf.dtype for one, leaf in before.described.stacks[prefix].items() if one not in quantized}
    assert {one: leaf.dtype for one, leaf in network.described.outer.items()} == {
        one: leaf.dtype for one, leaf in before.described.outer.items()
    }
    programs = {call.program.key for call in calls(model, request)}  # traces each program
    assert "denoise_step" in programs


def test_whole_matrices_of_half_the_size_take_half_the_memory_of_a_chip():
    preset = load_preset("wan2.1-t2v-14b-720p")
    sizes = []
    for format in ("off", "int8"):
        model = describe_model(
            preset.model_copy(update={"quantize": format}), jax.devices()[:1], lambda program, lowered: Compilation(None)
        )
        (network,) = (network for network in model.networks if network.expert is not None)
        sizes.append(sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(network.described)))
    assert sizes[1] / sizes[0] == pytest.approx(
        0.585, abs=0.015
    )  # the keys and values of the text, and embeddings, stay as before
