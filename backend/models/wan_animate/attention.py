"""The self-attention in the layers of Animate-2. The driving video attends to itself. The generated video attends to itself and
to the driving video."""

import dataclasses
import functools
from typing import Any

import jax

from backend.models.common.flat_attention import FLAT_HEADS, attend_flat
from backend.models.wan.attention import KernelAttention
from backend.runtime.driven_attention import ClipKeys, clip_attention, driven_attention
from kernels.attention import AttentionOptions, attention_with_lse
from kernels.qkv import HeadBounds


class DrivenAttention(KernelAttention):
    """An attention processor for `WanAttention` that extracts or reads the driving video's keys and values. The caller sets
    attributes before each layer, because diffusers' module has no argument for these keys and values. To extract, the caller sets
    `num_frames` to the driving video's number of latent frames, and reads `extracted` after the layer. To generate, the caller
    sets `num_frames` to None, `keys` to the driving video's keys and values in all layers, and `layer` to the index of the
    layer."""

    num_frames: int | None = None
    extracted: ClipKeys
    keys: ClipKeys
    layer: jax.Array

    def _attend(self, num_tokens: int, head_width: int, *projected: Any) -> jax.Array:
        sizes = {"head_width": head_width, "num_keys": num_tokens}
        if self.num_frames is not None:
            attend = functools.partial(attend_flat, **sizes)
            attended, self.extracted = clip_attention(self._layout, attend, *projected, self.num_frames, num_tokens)
            return attended
        attend = functools.partial(_attend_with_log_sums, **sizes)
        return driven_attention(self._layout, attend, *projected, self.keys, self.layer)


def _attend_with_log_sums(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bounds: HeadBounds | None,
    layer: jax.Array | None,
    *,
    head_width: int,
    num_keys: int,
) -> tuple[jax.Array, jax.Array]:
    """Compute attention [B, S, W] and its log-sum-exps. The W channels are all heads side by side, `head_width` channels each.
    For a `layer` of None, queries see the first `num_keys` keys of `key`. Otherwise `key` and `value` are arrays of all layers,
    and queries see all keys of the layer with the index `layer`."""
    heads = (array.reshape(*array.shape[:-1], -1, head_width) for array in (query, key, value))
    count, tpu = num_keys if layer is None else None, dataclasses.replace(FLAT_HEADS, bounds=bounds)
    attended, sums = attention_with_lse(*heads, options=AttentionOptions(num_keys=count, layer=layer, tpu=tpu))
    return attended.reshape(*attended.shape[:2], -1), sums
