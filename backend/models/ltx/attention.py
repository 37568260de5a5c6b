"""The attention inside diffusers' LTX-2 blocks. Video tokens are divided over the chips, audio tokens are replicated."""

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import torch

from backend.models.common.flat_attention import FEW_KEYS, as_array, attend_flat
from backend.runtime.cpu_attention import attention
from backend.runtime.mesh import HEADS, TEXT_HEADS, Layout
from backend.runtime.torch_modules import torchax
from backend.runtime.ulysses import cross_attention, self_attention
from kernels.attention import AttentionOptions
from kernels.qkv import rotate_halves

Tables = tuple[jax.Array | np.ndarray, jax.Array | np.ndarray]
"""Cosine and sine [S, H * D / 2], float32. They rotate the first half of each head's channels with the second half."""
Sort = Literal["video", "sound", "text", "video to sound", "sound to video"]
"""The kind of attention: a stream to itself ("video", "sound"), a stream to the text, or one stream to the other stream."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class RotaryInputs:
    """The rotary tables of an attention, and the guidance branches in which the attention is disabled.

    Attributes:
        query, key: the rotary tables of queries and keys.
        keeps: [B, 1, 1], 1 for branches in which the attention is enabled, else 0. Disabled self-attention returns its values
            unchanged. Disabled attention between video and audio returns zero. None if the attention is enabled in all
    branches."""

    query: Tables
    key: Tables
    keeps: jax.Array | None = None


class StreamAttention:
    """The attention processor for diffusers' `LTX2Attention`. Blocks pass `RotaryInputs` as `query_rotary_emb`. `num_video` is
    the number of video tokens without padding."""

    def __init__(self, layout: Layout, sort: Sort) -> None:
        self._layout, self._sort, self.num_video = layout, sort, 0

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: object = None,
        query_rotary_emb: RotaryInputs | None = None,
        key_rotary_emb: object = None,
        perturbation_mask: object = None,
        all_perturbed: object = None,
    ) -> torch.Tensor:
        keys_from = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        projected = attn.to_q(hidden_states), attn.to_k(keys_from), attn.to_v(keys_from)
        value = as_array(projected[2])
        if self._sort == "video":
            assert query_rotary_emb is not None, "video tokens have a rotary embedding"
            tables = query_rotary_emb.query
            attended = self_attention(
                self._layout,
                functools.partial(attend_flat, head_width=attn.head_dim, num_keys=self.num_video),
                (as_array(projected[0]), as_array(projected[1]), value),
                (as_array(attn.norm_q.weight), as_array(attn.norm_k.weight)),
                (as_array(tables[0]), as_array(tables[1])),
                attn.norm_q.eps,
                head_width=attn.head_dim,
            )
        else:
            query, key = (
                as_array(norm(one)).reshape(*one.shape[:2], attn.heads, -1)
                for norm, one in zip((attn.norm_q, attn.norm_k), projected, strict=False)
            )
            if query_rotary_emb is not None:
                query, key = rotate_heads(query, query_rotary_emb.query), rotate_heads(key, query_rotary_emb.key)
            attended = self._attend(query, key, value.reshape(*value.shape[:2], attn.heads, -1))
            attended = attended.reshape(*attended.shape[:2], -1)
        keeps = None if query_rotary_emb is None else query_rotary_emb.keeps
        crosses = encoder_hidden_states is not None
        if keeps is not None and not crosses:
            attended = jnp.where(as_array(keeps) > 0, attended, value)
        made = torchax().interop.torch_view(attended)
        if attn.to_gate_logits is not None:
            gates = as_array(2.0 * torch.sigmoid(attn.to_gate_logits(hidden_states)))
            width, each = made.shape[2], made.shape[2] // gates.shape[2]
            # With tp the heads are divided over the chips. Then the product would need a sum over the chips.
            if self._layout.size("tp") > 1:
                gates = jnp.repeat(gates, each, axis=2)
            else:  # one product with zeros and ones, because a separate axis for heads would cause two copies on a TPU
                spread = (jnp.arange(width) // each == jnp.arange(gates.shape[2])[:, None]).astype(gates.dtype)
                gates = jnp.matmul(gates, spread, precision="highest")
            made = made * torchax().interop.torch_view(gates)
        made = attn.to_out[0](made)
        return made if keeps is None or not crosses else made * torchax().interop.torch_view(as_array(keeps)).to(made.dtype)

    def _attend(self, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        """Compute the attention of queries, keys and values [B, S, H, D] for all sorts except "video"."""
        layout = self._layout
        if self._sort == "video to sound":
            axis = "sp" if layout.size("sp") > 1 else None
            local = functools.partial(_attend_over_spread_keys, num_keys=self.num_video, axis=axis)
            return layout.on_each_chip(local, (TEXT_HEADS, HEADS, HEADS), TEXT_HEADS)(query, key, value)
        if self._sort == "sound to video" or query.shape[1] % layout.token_multiple == 0 and self._sort == "text":
            query = layout.constrain(query, HEADS)
            attend = functools.partial(attention, options=AttentionOptions(tpu=FEW_KEYS))
            return cross_attention(layout, attend, query, key, value, None)
        # A few replicated tokens.
        logits = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32) * query.shape[3] ** -0.5
        shares = jax.nn.softmax(logits, axis=-1).astype(value.dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", shares, value)


def rotate_heads(heads: jax.Array, tables: Tables) -> jax.Array:
    """Rotate heads [B, S, H, D] by the rotary tables `tables`. Channel i of a head is paired with channel i + D / 2."""
    return rotate_halves(heads.reshape(*heads.shape[:2], -1), *map(as_array, tables), head_width=heads.shape[3]).reshape(
        heads.shape
    )


def _attend_over_spread_keys(query: jax.Array, key: jax.Array, value: jax.Array, num_keys: int, axis: str | None) -> jax.Array:
    """Compute the attention of a few replicated queries [B, L, H, D] to keys [B, S, H, D] that are divided over `axis`. Queries
    see only the first `num_keys` keys. Each chip computes the attention to its own keys. The chips then exchange their largest
    logits, and add their sums."""
    logits = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32) * query.shape[3] ** -0.5
    first = 0 if axis is None else jax.lax.axis_index(axis) * key.shape[1]
    logits = jnp.where(first + jnp.arange(key.shape[1]) < num_keys, logits, -jnp.inf)
    largest = logits.max(-1, keepdims=True)
    largest = largest if axis is None else jax.lax.pmax(largest, axis)
    shares = jnp.exp(logits - largest)
    total = shares.sum(-1)
    made = jnp.einsum("bhqk,bkhd->bqhd", shares.astype(value.dtype), value, preferred_element_type=jnp.float32)
    if axis is not None:
        total, made = jax.lax.psum(total, axis), jax.lax.psum(made, axis)
    return (made / total.transpose(0, 2, 1)[..., None]).astype(value.dtype)
