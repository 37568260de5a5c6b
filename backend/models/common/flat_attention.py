"""What the families' attention processors share: heads that lie flat in the channels, and arrays in place of tensors."""

import dataclasses
import functools

import jax

from backend.runtime.cpu_attention import attention
from backend.runtime.torch_modules import torchax
from kernels.attention import AttentionOptions, KeyCounts, TpuOptions
from kernels.qkv import HeadBounds

FLAT_HEADS = TpuOptions(layout="columns")  # what the projections write and read, [B, S, H * D], without a copy
FEW_KEYS = TpuOptions(layout="columns", tests_bounds=False)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["cosine", "sine"], meta_fields=["num_tokens"])
@dataclasses.dataclass(frozen=True, kw_only=True)
class Positions:
    """The rotary embedding, `cosine` and `sine` float32, of `num_tokens` tokens; the rest of S is padding. [1, S, 1, D], or
    [S, D], as a family's blocks take it."""

    cosine: jax.Array
    sine: jax.Array
    num_tokens: int


def attend_flat(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bounds: HeadBounds | None,
    counts: KeyCounts | None = None,
    *,
    head_width: int,
    num_keys: int | None = None,
) -> jax.Array:
    """Attention [B, S, W] of flat heads to the keys that count: `counts` of them, or the first `num_keys`."""
    query, key, value = (array.reshape(*array.shape[:2], -1, head_width) for array in (query, key, value))
    tpu = dataclasses.replace(FLAT_HEADS, bounds=bounds)
    attended = attention(query, key, value, options=AttentionOptions(num_keys=num_keys, counts=counts, tpu=tpu))
    return attended.reshape(*attended.shape[:2], -1)


def as_array(value) -> jax.Array:
    """A tensor of the environment in which blocks run, as an array; arrays as they are."""
    return value if isinstance(value, jax.Array) else torchax().interop.jax_view(value)
