"""The self-attention inside the layers.

The driving video attends to itself. The generated video attends to itself and to the driving video.
"""

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
    """A processor for `WanAttention` that extracts or reads the driving video's keys and values.

    diffusers' module cannot pass keys and values through, so the caller sets attributes before each layer. To extract, the caller
    sets `num_frames` of the driving video, and reads `extracted` after the layer. To generate, the caller sets `num_frames`
    to None, `keys` to the keys and values of all layers, and `layer` to the layer's index.
    """

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
    """Compute attention [B, S, W] of heads that are side by side in the W channels, and its log-sum-exps.

    If `key` and `value` have the keys and values of all layers, `layer` is the index of one layer, and queries see all keys of
    this layer. Otherwise the caller passes None for `layer`, and queries see the first `num_keys` keys.
    """
    heads = (array.reshape(*array.shape[:-1], -1, head_width) for array in (query, key, value))
    count, tpu = num_keys if layer is None else None, dataclasses.replace(FLAT_HEADS, bounds=bounds)
    attended, sums = attention_with_lse(*heads, options=AttentionOptions(num_keys=count, layer=layer, tpu=tpu))
    return attended.reshape(*attended.shape[:2], -1), sums
