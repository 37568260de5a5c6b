"""The self-attention inside diffusers' Wan layers for a causal model, with keys and values in a ring.

A ring is an array of fixed size, in which the newest frame replaces the oldest.
"""

import dataclasses
import functools
from typing import Any

import jax

from backend.models.common.flat_attention import FLAT_HEADS
from backend.models.wan.attention import KernelAttention
from backend.runtime.cpu_attention import attention
from backend.runtime.ulysses import KeyRing, RingPlace, ring_attention
from kernels.attention import AttentionOptions, KvLengths
from kernels.qkv import HeadBounds


class RingAttention(KernelAttention):
    """An attention processor for `WanAttention` that writes keys and values into a ring, and attends to the keys in the ring.

    A ring is an array of fixed size, in which the newest frame replaces the oldest frame. diffusers' module has no argument for a
    ring. Therefore the caller sets `ring` and `place` before each layer, and reads the updated `ring` after the layer.
    """

    ring: KeyRing
    place: RingPlace

    def _attend(self, num_tokens: int, head_width: int, *projected: Any) -> jax.Array:
        attend = functools.partial(_attend_to_ring, head_width=head_width, least=num_tokens)
        attended, self.ring = ring_attention(self._layout, attend, *projected, num_tokens, self.ring, self.place)
        return attended


def _attend_to_ring(
    query, keys, values, place: RingPlace, bounds: HeadBounds | None, *, head_width: int, least: int
) -> jax.Array:
    """Compute attention [B, S, W] to the first `place.count` keys of the layer `place.layer`. W are the channels of all heads.

    `keys` and `values` are [layers, B, S_kv, W]. The caller guarantees that `place.count` is at least `least`. If `place.count`
    is S_kv, a faster branch without a mask runs.
    """
    options = AttentionOptions(layer=place.layer, tpu=dataclasses.replace(FLAT_HEADS, bounds=bounds))
    heads = tuple(array.reshape(*array.shape[:-1], -1, head_width) for array in (query, keys, values))

    def all_of(*heads: jax.Array) -> jax.Array:
        return attention(*heads, options=options)

    def some_of(*heads: jax.Array) -> jax.Array:
        kv_lengths = KvLengths(values=place.count[None], minimum=least)
        return attention(*heads, options=dataclasses.replace(options, kv_lengths=kv_lengths))

    attended = jax.lax.cond(place.count == keys.shape[2], all_of, some_of, *heads)
    return attended.reshape(*attended.shape[:2], -1)
