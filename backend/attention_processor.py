"""The attention that runs inside diffusers' Wan blocks: our kernels, with rotary embedding and cached text keys."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import torch

from backend.torchax_setup import torchax
from kernels.attention import attention


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TextKeys:
    """One layer's cross-attention keys and values, which depend on the prompt only: computed once a video.

    `key`, `value` [B, L, H, D]; `bias` [B, 1, 1, L], added to the logits, or None where all positions count alike.
    """

    key: jax.Array
    value: jax.Array
    bias: jax.Array | None


class KernelAttention:
    """A processor for diffusers' `WanAttention`: self-attention, or cross-attention where it is handed `TextKeys`."""

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None) -> torch.Tensor:
        if isinstance(encoder_hidden_states, TextKeys):
            attended = _attend_to_text(attn, hidden_states, encoder_hidden_states)
        else:
            attended = _attend_to_self(attn, hidden_states, rotary_emb)
        flat = attended.reshape(*attended.shape[:2], -1)
        return attn.to_out[0](torchax().interop.torch_view(flat))


def _attend_to_self(attn, hidden_states: torch.Tensor, rotary_emb) -> jax.Array:
    cosine, sine = (_array(value) for value in rotary_emb)
    query = rotate(_heads(attn.norm_q(attn.to_q(hidden_states)), attn.heads), cosine, sine)
    key = rotate(_heads(attn.norm_k(attn.to_k(hidden_states)), attn.heads), cosine, sine)
    value = _heads(attn.to_v(hidden_states), attn.heads)
    return attention(query, key, value)


def _attend_to_text(attn, hidden_states: torch.Tensor, text: TextKeys) -> jax.Array:
    query = _heads(attn.norm_q(attn.to_q(hidden_states)), attn.heads)
    return attention(query, _array(text.key), _array(text.value), None if text.bias is None else _array(text.bias))


def text_keys(attn, text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [B, L, H, D] of the embedded text [B, L, D] for one layer's cross-attention."""
    key = attn.norm_k(attn.to_k(text)).unflatten(2, (attn.heads, -1))
    return key, attn.to_v(text).unflatten(2, (attn.heads, -1))


def rotate(value: jax.Array, cosine: jax.Array, sine: jax.Array) -> jax.Array:
    """Rotary embedding of neighbouring pairs of `value` [B, S, H, D]; `cosine`, `sine` [1, S, 1, D] as diffusers has them."""
    pairs = value.reshape(*value.shape[:-1], -1, 2)
    turned = jnp.stack([-pairs[..., 1], pairs[..., 0]], axis=-1).reshape(value.shape)
    return (value * cosine + turned * sine).astype(value.dtype)


def _heads(projected: torch.Tensor, heads: int) -> jax.Array:
    array = _array(projected)
    return array.reshape(*array.shape[:2], heads, -1)


def _array(value) -> jax.Array:
    return value if isinstance(value, jax.Array) else torchax().interop.jax_view(value)
