"""Helpers for attention processors: attention with all heads side by side in the channels, and conversion of torchax tensors."""

import dataclasses
import functools

import jax
import numpy as np

from backend.models.common.token_order import Grid, TokenOrder
from backend.runtime.cpu_attention import attention
from backend.runtime.torch_modules import torchax
from kernels.attention import AttentionOptions, KvLengths, TpuOptions
from kernels.qkv import HeadBounds
from kernels.tiles import TileSelection

# The kernel reads [B, S, H * D], the heads side by side. The layers before it return the same form, so no copy is needed.
FLAT_HEADS = TpuOptions(layout="columns")
FEW_KEYS = TpuOptions(layout="columns", tests_bounds=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparsePlan:
    """The settings of sparse self-attention, in which each block of queries sees only selected blocks of keys.

    Attributes:
        method: the method of sparse attention: "sol" (Sol-Attn), "sla", "sla-map" or "vsa".
        keep: the share of the key blocks that each query block sees. Sol-Attn has the threshold `tau` instead.
        tile: the sides of a tile in tokens, if each block is a tile. None for methods without tiles.
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
    """The rotary embedding: `cosine` and `sine`, float32 [1, S, 1, D] or [S, D], depending on the model family.

    The first `num_tokens` of the S positions belong to tokens. `order` is the order of the tokens if sparse attention reorders
    them. Then `num_tokens` also counts the padding between tokens. Self-attention is sparse if `sparse` or `tiles` is set.
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
    """The step state of steps with Sol-Attn: counts of key blocks, summed over all heads, layers and steps so far.

    `totals` [2] float32 counts the blocks that attention computed exactly, and the blocks that were approximated because the list
    of exact blocks was full.
    """

    totals: jax.Array


def rotary_angles(positions: np.ndarray, width: int, theta: float = 10_000.0) -> np.ndarray:
    """Compute the rotary angles [N, width] float64 of N positions. Each angle appears twice, because it rotates two channels."""
    rates = theta ** (-np.arange(0, width, 2, dtype=np.float64) / width)
    return np.repeat(np.outer(positions, rates), 2, axis=1)


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
    """Compute attention on arrays [B, S, W] whose W channels are all heads side by side.

    Queries see only the first `num_keys` keys, by default all. `kv_lengths` sets a separate limit for each sample.
    """
    query, key, value = (array.reshape(*array.shape[:2], -1, head_width) for array in (query, key, value))
    tpu = dataclasses.replace(FLAT_HEADS, bounds=bounds)
    attended = attention(query, key, value, options=AttentionOptions(num_keys=num_keys, kv_lengths=kv_lengths, tpu=tpu))
    return attended.reshape(*attended.shape[:2], -1)


def as_array(value) -> jax.Array:
    return value if isinstance(value, jax.Array) else torchax().interop.jax_view(value)
