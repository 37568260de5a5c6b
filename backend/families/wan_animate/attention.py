"""The self-attention inside the blocks: of the driving clip to itself, and of the video to itself and to the clip's frames."""

import dataclasses
import functools

import jax
import torch

from backend.families.kit.flat_attention import FLAT_HEADS, Positions, as_array, attend_flat
from backend.families.wan.attention import KernelAttention
from backend.runtime.driven_attention import ClipKeys, clip_attention, driven_attention
from kernels.attention import attention
from kernels.qkv import HeadBounds


class DrivenAttention(KernelAttention):
    """A processor for `WanAttention`. diffusers' block has no way through for the clip: whoever calls a block puts `num_frames`
    of the clip here before, and takes `made` from here after; or puts all layers' `keys` here, and the `layer`."""

    num_frames: int | None = None
    made: ClipKeys
    keys: ClipKeys
    layer: jax.Array

    def _attend_to_self(self, attn, hidden_states: torch.Tensor, positions: Positions) -> jax.Array:
        projected = tuple(as_array(project(hidden_states)) for project in (attn.to_q, attn.to_k, attn.to_v))
        tables = tuple(as_array(table)[0, :, 0] for table in (positions.cosine, positions.sine))
        norms = (as_array(attn.norm_q.weight), as_array(attn.norm_k.weight))
        same = (self._layout, projected, norms, tables, attn.norm_q.eps)
        width, count = tables[0].shape[1], positions.num_tokens
        if self.num_frames is not None:
            attended, self.made = _to_clip_alone(*same, head_width=width, num_keys=count, num_frames=self.num_frames)
            return attended
        layout, *rest = same
        attend = functools.partial(_attend, head_width=width, num_keys=count)
        return driven_attention(layout, attend, *rest, self.keys, self.layer)


def _to_clip_alone(layout, *rest, head_width: int, num_keys: int, num_frames: int) -> tuple[jax.Array, ClipKeys]:
    attend = functools.partial(attend_flat, head_width=head_width, num_keys=num_keys)
    return clip_attention(layout, attend, *rest, num_frames, num_keys)


def _attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bounds: HeadBounds | None,
    layer: jax.Array | None,
    *,
    head_width: int,
    num_keys: int,
) -> tuple[jax.Array, jax.Array]:
    """Attention [B, S, W] of flat heads, and its log-sums: to the first `num_keys` keys, or to all of a `layer`."""
    heads = (array.reshape(*array.shape[:-1], -1, head_width) for array in (query, key, value))
    options = dataclasses.replace(FLAT_HEADS, bounds=bounds)
    count = num_keys if layer is None else None
    attended, sums = attention(*heads, num_keys=count, layer=layer, tpu=options, gives_sums=True)
    return attended.reshape(*attended.shape[:2], -1), sums
