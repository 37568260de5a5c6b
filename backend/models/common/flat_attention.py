"""Helpers for the families' attention processors: attention with heads side by side in the channels, and arrays from tensors."""

import dataclasses
import functools

import jax

from backend.models.common.token_order import Grid, TokenOrder
from backend.runtime.cpu_attention import attention
from backend.runtime.torch_modules import torchax
from kernels.attention import AttentionOptions, KvLengths, TpuOptions
from kernels.qkv import HeadBounds
from kernels.tiles import TileSelection

# The kernel reads heads side by side, [B, S, H * D], as the projections return them. Nothing has to be copied.
FLAT_HEADS = TpuOptions(layout="columns")
FEW_KEYS = TpuOptions(layout="columns", tests_bounds=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparsePlan:
    """The plan by which self-attention selects the keys that a query sees.

    Attributes:
        method: the method of sparse attention.
        keep: the share of the key blocks that each query block sees, for methods with lists of equal lengths.
        tau: the threshold of Sol-Attn.
        block_q, block_kv: the number of queries and keys in a block.
        tile: the sides of the tiles of tokens that are the blocks. None if tokens keep their numbering.
    """

    method: str
    keep: float
    block_q: int
    block_kv: int
    tile: Grid | None = None
    tau: float = 0.0


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["cosine", "sine", "order"], meta_fields=["num_tokens", "sparse", "tiles"]
)
@dataclasses.dataclass(frozen=True, kw_only=True)
class Positions:
    """The rotary embedding: `cosine` and `sine`, float32 [1, S, 1, D] or [S, D], as the family's blocks need it.

    The first `num_tokens` of the S positions belong to tokens, the others to padding. With `order`, the tokens have other places,
    and `num_tokens` is the number of places. Self-attention is sparse with `sparse` or with `tiles`, and otherwise dense.
    """

    cosine: jax.Array
    sine: jax.Array
    num_tokens: int
    sparse: SparsePlan | None = None
    tiles: TileSelection | None = None
    order: TokenOrder | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockCounts:
    """The step state with Sol-Attn, over all heads, layers and steps so far.

    `totals` [2] float32 has the number of blocks of keys that were exact, and of blocks above the threshold without space.
    """

    totals: jax.Array


def attend_flat(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bounds: HeadBounds | None,
    kv_lengths: KvLengths | None = None,
    *,
    head_width: int,
    num_keys: int | None = None,
) -> jax.Array:
    """Compute attention [B, S, W] of heads that are side by side in the W channels.

    `num_keys` limits all queries to the first `num_keys` keys. `kv_lengths` has a separate limit for each sample. Without a
    limit, queries see all keys.
    """
    query, key, value = (array.reshape(*array.shape[:2], -1, head_width) for array in (query, key, value))
    tpu = dataclasses.replace(FLAT_HEADS, bounds=bounds)
    attended = attention(query, key, value, options=AttentionOptions(num_keys=num_keys, kv_lengths=kv_lengths, tpu=tpu))
    return attended.reshape(*attended.shape[:2], -1)


def as_array(value) -> jax.Array:
    """Convert a torchax tensor to a jax array. Arrays are returned unchanged."""
    return value if isinstance(value, jax.Array) else torchax().interop.jax_view(value)
