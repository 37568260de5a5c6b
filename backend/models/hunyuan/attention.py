"""Attention processors for diffusers' HunyuanVideo 1.5 blocks. They use this project's kernels for both video and context tokens.
Context tokens are the tokens of the image, of the quoted text and of the prompt."""

import dataclasses
import functools
from typing import cast

import jax
import jax.numpy as jnp
import torch

from backend.models.common.flat_attention import FEW_KEYS, Positions, as_array, attend_flat
from backend.runtime.cpu_attention import attention
from backend.runtime.joint_attention import Joining, Stream, joint_attention
from backend.runtime.mesh import TEXT_HEADS, Layout, partition
from backend.runtime.torch_modules import torchax
from backend.runtime.ulysses import OwnHeads
from kernels.attention import AttentionOptions, KvLengths, SparseHeads, ssta_attention
from kernels.tiles import TileSelection


class JointAttention:
    """The attention processor of a block, in which video tokens and context tokens attend to each other. Blocks pass the number
    of context tokens without padding, [B] int32, as `attention_mask`, and `Positions` as `image_rotary_emb`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, image_rotary_emb=None):
        counts, positions = as_array(attention_mask), cast(Positions, image_rotary_emb)
        video = _project_stream(hidden_states, (attn.to_q, attn.to_k, attn.to_v), (attn.norm_q, attn.norm_k))
        projections = (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
        beside = _project_stream(encoder_hidden_states, projections, (attn.norm_added_q, attn.norm_added_k))
        tables = as_array(positions.cosine), as_array(positions.sine)
        attend = functools.partial(attend_flat, head_width=tables[0].shape[1])
        how = Joining(num_tokens=positions.num_tokens, eps=attn.norm_q.eps)
        if positions.tiles is not None:
            num_keys = positions.num_tokens + beside.query.shape[1]
            attend_spread = functools.partial(
                _attend_tiles, tiles=positions.tiles, num_keys=num_keys, head_width=tables[0].shape[1]
            )
            how = dataclasses.replace(how, attend_spread=attend_spread)
            # Set the values of padding tokens to zero. Zeros in the rotary tables already set their queries and keys to zero.
            assert positions.order is not None, "SSTA orders tokens by tiles"
            size = positions.tiles.size
            is_token = (jnp.arange(size) < as_array(positions.order.counts)[:, None]).reshape(-1)
            is_token = jnp.pad(is_token, (0, video.value.shape[1] - len(is_token)))
            video = dataclasses.replace(video, value=jnp.where(is_token[:, None], video.value, 0))
            # All queries see whole tiles of context tokens, at least one. As in the published code, the last tile can end with
            # padding.
            counts = jnp.maximum(-(-counts // size), 1) * size
        attended = joint_attention(self._layout, attend, video, beside, counts, tables, how)
        ours, theirs = (torchax().interop.torch_view(array) for array in attended)
        return attn.to_out[0](ours), attn.to_add_out(theirs)


class TextAttention:
    """The attention processor of the token refiner, which processes the prompt's tokens. `attention_mask` is the number of tokens
    without padding, [B] int32."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None) -> torch.Tensor:
        projected = (as_array(project(hidden_states)) for project in (attn.to_q, attn.to_k, attn.to_v))
        query, key, value = (
            self._layout.constrain(array.reshape(*array.shape[:2], attn.heads, -1), TEXT_HEADS) for array in projected
        )
        specs = (*[TEXT_HEADS] * 3, partition("branches"))
        attend = self._layout.on_each_chip(_attend_to_text, specs, TEXT_HEADS)
        attended = attend(query, key, value, as_array(attention_mask))
        flat = attended.reshape(*attended.shape[:2], -1)
        return attn.to_out[0](torchax().interop.torch_view(flat))


def _project_stream(hidden: torch.Tensor, projections: tuple, norms: tuple) -> Stream:
    query, key, value = (as_array(project(hidden)) for project in projections)
    of_query, of_key = (as_array(norm.weight) for norm in norms)
    return Stream(query=query, key=key, value=value, norms=(of_query, of_key))


def _attend_tiles(
    own: OwnHeads, first_query: jax.Array | int, counts: jax.Array, *, tiles: TileSelection, num_keys: int, head_width: int
) -> jax.Array:
    """Compute SSTA, the model's sparse attention, for the heads of one chip, [B, tokens, W]."""
    query, key, value = (array.reshape(*array.shape[:2], -1, head_width) for array in (own.query, own.key, own.value))
    heads = SparseHeads(
        query=query,
        key=key,
        value=value,
        num_keys=num_keys,
        num_queries=query.shape[1],
        bounds=own.bounds,
        mean=None if own.mean is None else own.mean.reshape(own.mean.shape[0], 1, -1, head_width),
    )
    attended = ssta_attention(heads, tiles, counts // tiles.size, first_query // tiles.size)
    return attended.reshape(own.query.shape)


def _attend_to_text(query: jax.Array, key: jax.Array, value: jax.Array, counts: jax.Array) -> jax.Array:
    return attention(query, key, value, options=AttentionOptions(kv_lengths=KvLengths(values=counts), tpu=FEW_KEYS))
