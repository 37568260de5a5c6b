"""The self-attention and cross-attention of diffusers' Wan layers, computed by this project's kernels."""

import dataclasses
import functools
import math
from typing import Any, cast

import jax
import jax.numpy as jnp
import torch

from backend.models.common.flat_attention import FEW_KEYS, Positions, as_array, attend_flat
from backend.models.wan.sparse_attention import attend_own_heads
from backend.runtime.cpu_attention import attention
from backend.runtime.mesh import HEADS, Layout
from backend.runtime.token_norm import normalise_tokens
from backend.runtime.torch_modules import torchax
from backend.runtime.ulysses import cross_attention, self_attention, sparse_self_attention
from kernels.attention import AttentionOptions
from kernels.qkv import LOG2_E

NAG_LONGEST, NAG_SHARE = 2.5, 0.25
"""Normalized Attention Guidance's tau and alpha for Wan, as in its authors' code (ChenDarYen/Normalized-Attention-Guidance)."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TextKeys:
    """One layer's cross-attention keys and values, which depend only on prompt and images.

    Attributes:
        key, value: [B, L, H, D], for L text positions and H heads of D channels.
        bias: [B, 1, 1, L], added to the scores before the softmax. None if all text positions have equal weight.
        image: keys and values of the image encoder's tokens. None for models without a separate attention to these tokens.
        nag: the scale of NAG (see `apply_nag`), None without NAG. Row 0 is then for the prompt, row 1 for the negative prompt.
    """

    key: jax.Array
    value: jax.Array
    bias: jax.Array | None
    image: tuple[jax.Array, jax.Array] | None = None
    nag: jax.Array | None = None


class KernelAttention:
    """An attention processor for diffusers' `WanAttention` that calls this project's kernels.

    The caller passes `Positions` for self-attention, or `TextKeys` for cross-attention. Sparse self-attention sets
    `block_counts`, with Sol-Attn to `BlockCounts.totals`, otherwise to None.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.block_counts: jax.Array | None = None

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None) -> torch.Tensor:
        if isinstance(encoder_hidden_states, TextKeys):
            attended = self._attend_to_text(attn, hidden_states, encoder_hidden_states)
        else:
            attended = self._attend_to_self(attn, hidden_states, cast(Positions, rotary_emb))
        return attn.to_out[0](torchax().interop.torch_view(attended))

    def _attend_to_self(self, attn, hidden_states: torch.Tensor, positions: Positions) -> jax.Array:
        query, key, value = (as_array(project(hidden_states)) for project in (attn.to_q, attn.to_k, attn.to_v))
        cosine, sine = (as_array(table)[0, :, 0] for table in (positions.cosine, positions.sine))
        projected, tables, head_width, eps = (query, key, value), (cosine, sine), cosine.shape[1], attn.norm_q.eps
        norms = (as_array(attn.norm_q.weight), as_array(attn.norm_k.weight))
        if positions.sparse is None:
            return self._attend(positions.num_tokens, head_width, projected, norms, tables, eps)
        plan, method, shared = positions.sparse, positions.sparse.method, ()
        if method == "vsa":
            assert positions.order is not None and positions.order.counts is not None, "VSA orders tokens by tiles"
            shared = (as_array(positions.order.counts),)
        elif method == "sla":
            shared = as_array(attn.proj_l.weight), as_array(attn.proj_l.bias)
        attend = functools.partial(attend_own_heads, plan=plan, num_tokens=positions.num_tokens, head_width=head_width)
        gate = as_array(attn.to_gate_compress(hidden_states)) if method == "vsa" else None
        attended, self.block_counts = sparse_self_attention(
            self._layout, attend, projected, norms, tables, eps, shared, gate, method == "sol"
        )
        return attended

    def _attend(self, num_tokens: int, head_width: int, *arguments: Any) -> jax.Array:
        """Compute self-attention [B, S, heads * head_width]. Queries see the first `num_tokens` tokens, not the padding."""
        attend = functools.partial(attend_flat, head_width=head_width, num_keys=num_tokens)
        return self_attention(self._layout, attend, *arguments)

    def _attend_to_text(self, attn, hidden_states: torch.Tensor, text: TextKeys) -> jax.Array:
        query, norm, scale = attn.to_q(hidden_states), attn.norm_q, None
        if self._layout.uses_tpu_passes(as_array(query).dtype):
            # The kernel computes powers of 2 instead of powers of e, so it multiplies scores by `scale` and by log2(e). Here the
            # norm already multiplies the query by D ** -0.5 and by log2(e). Therefore `scale` is ln 2: ln 2 times log2(e) is 1.
            array, scale = as_array(query), math.log(2)
            weight = as_array(norm.weight).astype(jnp.float32) * (LOG2_E * (array.shape[2] // attn.heads) ** -0.5)
            query = normalise_tokens(self._layout, array, weight, eps=norm.eps)
        else:
            query = as_array(norm(query))
        query = self._layout.constrain(query.reshape(*query.shape[:2], attn.heads, -1), HEADS)
        bias = None if text.bias is None else as_array(text.bias)
        keys, image = (as_array(text.key), as_array(text.value), bias), text.image and tuple(map(as_array, text.image))
        options = AttentionOptions(scale=scale, tpu=FEW_KEYS)
        attend = functools.partial(cross_attention, self._layout, functools.partial(attention, options=options), query)
        if text.nag is None:
            attended = attend(*keys)
        else:
            key, value, bias = keys
            rows = (slice(0, 1), slice(1, 2))
            own, other = (attend(key[row], value[row], None if bias is None else bias[row]) for row in rows)
            attended, image = apply_nag(own, other, as_array(text.nag)), image and tuple(one[:1] for one in image)
        if image is not None:
            attended = attended + attend(*image, None)
        return attended.reshape(*attended.shape[:2], -1)


def apply_nag(own: jax.Array, other: jax.Array, scale: jax.Array) -> jax.Array:
    """Move attention to the prompt (`own`) away from attention to the negative prompt (`other`), both [B, S, H, D].

    The L1 norm of the extrapolated attention, `other` + `scale` * (`own` - `other`), is limited to `NAG_LONGEST` times the L1
    norm of `own`. The result is a weighted mean of this attention and `own`. Source: arXiv:2505.21179, and the authors' processor
    for Wan.
    """
    positive, negative = own.astype(jnp.float32), other.astype(jnp.float32)
    guided = positive * scale - negative * (scale - 1)
    length, longest = (jnp.abs(array).sum((2, 3), keepdims=True) for array in (guided, NAG_LONGEST * positive))
    guided = guided * jnp.minimum(1.0, longest / jnp.maximum(length, jnp.finfo(jnp.float32).tiny))
    return (NAG_SHARE * guided + (1 - NAG_SHARE) * positive).astype(own.dtype)


def text_keys(attn, tokens: torch.Tensor, *, of_images: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute one layer's cross-attention keys and values [B, L, H, D] from the embedded text or images [B, L, D]."""
    norm, to_key, to_value = attn.norm_k, attn.to_k, attn.to_v
    if of_images:
        norm, to_key, to_value = attn.norm_added_k, attn.add_k_proj, attn.add_v_proj
    return norm(to_key(tokens)).unflatten(2, (attn.heads, -1)), to_value(tokens).unflatten(2, (attn.heads, -1))
