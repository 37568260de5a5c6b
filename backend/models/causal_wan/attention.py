"""The self-attention inside diffusers' Wan blocks for a video that is made block by block: keys and values lie in a ring."""

import dataclasses
import functools
from typing import Any

import jax

from backend.models.common.flat_attention import FLAT_HEADS
from backend.models.wan.attention import KernelAttention
from backend.runtime.cpu_attention import attention
from backend.runtime.ulysses import KeyRing, RingPlace, ring_attention
from kernels.attention import AttentionOptions, KeyCounts
from kernels.qkv import HeadBounds


class RingAttention(KernelAttention):
    """A processor for `WanAttention`. diffusers' block has no way through for the ring: whoever calls a block puts `ring` and
    `place` here before, and takes `ring` from here after."""

    ring: KeyRing
    place: RingPlace

    def _attend(self, num_tokens: int, head_width: int, *projected: Any) -> jax.Array:
        attend = functools.partial(_attend_to_ring, head_width=head_width, least=num_tokens)
        attended, self.ring = ring_attention(self._layout, attend, *projected, num_tokens, self.ring, self.place)
        return attended


def _attend_to_ring(
    query, keys, values, place: RingPlace, bounds: HeadBounds | None, *, head_width: int, least: int
) -> jax.Array:
    """Attention [B, S, W] of flat heads to the keys that count in one layer of [layers, B, S_kv, W], `least` of them or more. A
    full ring, as it is from then on, has a program without a mask."""
    options = AttentionOptions(layer=place.layer, tpu=dataclasses.replace(FLAT_HEADS, bounds=bounds))
    heads = tuple(array.reshape(*array.shape[:-1], -1, head_width) for array in (query, keys, values))

    def all_of(*heads: jax.Array) -> jax.Array:
        return attention(*heads, options=options)

    def some_of(*heads: jax.Array) -> jax.Array:
        counts = KeyCounts(values=place.count[None], least=least)
        return attention(*heads, options=dataclasses.replace(options, counts=counts))

    attended = jax.lax.cond(place.count == keys.shape[2], all_of, some_of, *heads)
    return attended.reshape(*attended.shape[:2], -1)
