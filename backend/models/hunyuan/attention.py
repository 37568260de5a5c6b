"""Attention processors for diffusers' HunyuanVideo 1.5 blocks. They use our kernels for the video tokens and context tokens.

Context tokens are the tokens of the image, of the quoted text and of the prompt.
"""

import functools
from typing import Any, cast

import jax
import torch

from backend.models.common.flat_attention import FEW_KEYS, Positions, as_array, attend_flat
from backend.runtime.cpu_attention import attention
from backend.runtime.joint_attention import Joining, Stream, joint_attention, text_attention
from backend.runtime.mesh import TEXT_HEADS, Layout
from backend.runtime.torch_modules import torchax
from kernels.attention import AttentionOptions, KvLengths


class JointAttention:
    """The attention processor of a block, in which video tokens and context tokens attend to each other.

    Blocks pass the number of context tokens without padding, [B] int32, as `attention_mask`, and `Positions` as
    `image_rotary_emb`.
    """

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
        attended = joint_attention(self._layout, attend, video, beside, counts, tables, how)
        ours, theirs = (torchax().interop.torch_view(array) for array in attended)
        return attn.to_out[0](ours), attn.to_add_out(theirs)


class TextAttention:
    """The attention processor of the token refiner. `attention_mask` is the number of tokens without padding, [B] int32."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None) -> torch.Tensor:
        query, key, value = (self._to_heads(project(hidden_states), attn) for project in (attn.to_q, attn.to_k, attn.to_v))
        attended = text_attention(self._layout, _attend_to_text, query, key, value, as_array(attention_mask))
        flat = attended.reshape(*attended.shape[:2], -1)
        return attn.to_out[0](torchax().interop.torch_view(flat))

    def _to_heads(self, projected: torch.Tensor, attn: Any) -> jax.Array:
        array = as_array(projected)
        return self._layout.constrain(array.reshape(*array.shape[:2], attn.heads, -1), TEXT_HEADS)


def _project_stream(hidden: torch.Tensor, projections: tuple, norms: tuple) -> Stream:
    query, key, value = (as_array(project(hidden)) for project in projections)
    of_query, of_key = (as_array(norm.weight) for norm in norms)
    return Stream(query=query, key=key, value=value, norms=(of_query, of_key))


def _attend_to_text(query: jax.Array, key: jax.Array, value: jax.Array, counts: jax.Array) -> jax.Array:
    return attention(query, key, value, options=AttentionOptions(kv_lengths=KvLengths(values=counts), tpu=FEW_KEYS))
