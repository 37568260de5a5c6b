"""Compare blocks whose norms are the TPU's passes, in the interpreter, with diffusers' blocks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers.models.transformers.transformer_hunyuan_video15 import HunyuanVideo15TransformerBlock
from diffusers.models.transformers.transformer_wan import WanTransformerBlock
from jax.experimental.pallas import tpu as pltpu

from backend.models.hunyuan.transformer import norm_in_float32
from backend.models.hunyuan.transformer import run_block as run_hunyuan_block
from backend.models.wan.block import run_block as run_wan_block
from backend.runtime.torch_modules import call_module

TOKENS, WIDTH = 128, 256


class Layout:
    """Return a layout of one chip, with or without the TPU's passes."""

    tokens = None

    def __init__(self, uses_passes: bool) -> None:
        self._uses_passes = uses_passes

    def uses_tpu_passes(self, dtype) -> bool:
        return self._uses_passes

    def on_each_chip(self, one_chip, in_specs, out_specs):
        return one_chip


def parameters_of(block: torch.nn.Module) -> dict[str, jax.Array]:
    """Return random weights: float32 for the norms and the modulation, bfloat16 for the others."""
    wide = ("norm1", "norm2", "norm3", "scale_shift_table")
    made = {}
    for number, (name, tensor) in enumerate(block.state_dict().items()):
        drawn = 0.05 * jax.random.normal(jax.random.key(number), tensor.shape)
        made[name] = drawn if name.startswith(wide) and "linear" not in name else drawn.astype(jnp.bfloat16)
    return made


def draw(number: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(number), shape).astype(jnp.bfloat16)


def close(ours: jax.Array, theirs: jax.Array) -> None:
    """Norms are rounded once instead of up to three times, by 2^-8 each. Two products and sums that round as often follow: 2^-5
    of values up to 8.
    """
    difference = np.abs(np.asarray(ours, np.float32) - np.asarray(theirs, np.float32))
    assert difference.max() < 8 * 2**-5 and difference.mean() < 2**-7


def echo() -> torch.nn.Module:
    """Return a substitute for an attention that halves its input. It lets the test compare everything except the attention."""

    class Echo(torch.nn.Module):
        def forward(self, hidden_states, *others):
            return 0.5 * hidden_states

    return Echo()


def echo_both() -> torch.nn.Module:
    """Return the same substitute for an attention of two streams."""

    class EchoBoth(torch.nn.Module):
        def forward(self, hidden_states, encoder_hidden_states, attention_mask=None, image_rotary_emb=None):
            return 0.5 * hidden_states, 0.5 * encoder_hidden_states

    return EchoBoth()


@pytest.mark.parametrize("of_each_token", [False, True])
def test_a_block_of_wan_is_diffusers_own(of_each_token):
    with torch.device("meta"):
        block = WanTransformerBlock(WIDTH, 512, 2, cross_attn_norm=True)
    block.attn1, block.attn2 = echo(), echo()
    weights, hidden = parameters_of(block), draw(100, 1, TOKENS, WIDTH)
    modulation = draw(101, 1, TOKENS if of_each_token else 1, 6, WIDTH).astype(jnp.float32)
    theirs = call_module(block, weights, lambda block, *arrays: block(arrays[0], None, arrays[1], None), hidden, modulation)
    for uses_passes in (False, True):
        with pltpu.force_tpu_interpret_mode():
            run = functools.partial(run_wan_block, layout=Layout(uses_passes))
            close(call_module(block, weights, run, hidden, None, modulation, None), theirs)


def test_a_block_of_hunyuanvideo_is_diffusers_own():
    with torch.device("meta"):
        block = HunyuanVideo15TransformerBlock(2, WIDTH // 2, 2.0)
        block.attn = echo_both()
        norm_in_float32(block)
    weights, arrays = parameters_of(block), (draw(100, 1, TOKENS, WIDTH), draw(102, 1, 40, WIDTH), draw(103, 1, WIDTH))
    theirs = call_module(block, weights, lambda block, *arrays: block(*arrays), *arrays)
    for uses_passes in (False, True):
        with pltpu.force_tpu_interpret_mode():
            run = functools.partial(run_hunyuan_block, layout=Layout(uses_passes))
            ours = call_module(block, weights, run, *arrays, None, None)
        for one, other in zip(ours, theirs, strict=True):
            close(one, other)
