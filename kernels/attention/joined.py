"""Join two attentions of the same queries to different keys. The result is the attention to all of these keys.

On a TPU, one Pallas pass reads both attentions and writes the joined attention. XLA's own program takes ten times as long,
because it first converts and copies both attentions.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

Part = tuple[jax.Array, jax.Array]
"""The attention of some queries, [B, S, H, D], and the log-sum-exp of each query, [B, S, H] float32."""

ROWS, SUBLANES = 512, 16  # a grid step has at most ROWS queries, a multiple of SUBLANES (the rows of a bfloat16 register)


def join_attentions(
    first: Part, second: Part, *, before: int = 0, use_pallas: bool = False, interpret: bool = False
) -> jax.Array:
    """Return the attention [B, S, H, D] to the keys of `first` and `second` together.

    The result is the mean of the two attentions, weighted by exp(log-sum-exp). Both arguments are results of
    `attention_with_lse`. A log-sum-exp of -inf in `second` means that the query sees no key of `second`.

    `second` may have fewer queries than `first`: query i of `second` is then query `before` + i of `first`. The attention of all
    other queries of `first` stays unchanged. `use_pallas` selects the Pallas pass, if `before` and the number of
    queries of `second` are multiples of 16.
    Source: FlashAttention (Dao et al., 2022, section 3.1), which joins blocks of keys in the same way.
    """
    (attended, lse), (others, others_lse) = first, second
    length, end = attended.shape[1], before + others.shape[1]
    share = jax.nn.sigmoid(others_lse - lse[:, before:end])
    rows = _rows_per_step(before, others.shape[1])
    if use_pallas and rows is not None:
        return _join_with_pallas(attended, others, share, before // rows, rows, interpret)
    share, others = (
        jnp.pad(array, ((0, 0), (before, length - end), *[(0, 0)] * (array.ndim - 2))) for array in (share[..., None], others)
    )
    mixed = attended.astype(jnp.float32) * (1 - share) + others.astype(jnp.float32) * share
    return mixed.astype(attended.dtype)


def _rows_per_step(before: int, length: int) -> int | None:
    """Return the number of queries in a grid step: the largest multiple of 16 up to 512 that divides `before` and `length`.

    Return None if no multiple divides both. `before` is the number of queries before the first query that both attentions have.
    `length` is the number of queries that both attentions have.
    """
    return next((rows for rows in range(ROWS, 0, -SUBLANES) if before % rows == 0 and length % rows == 0), None)


def _join_with_pallas(
    attended: jax.Array, others: jax.Array, share: jax.Array, before: int, rows: int, interpret: bool
) -> jax.Array:
    """Compute the weighted mean of two attentions in one Pallas pass, in blocks of `rows` queries.

    `share` is the weight of `others`, and 1 - `share` the weight of `attended`. Block 0 of `others` has the same queries as block
    `before` of `attended`. The pass copies the blocks of `attended` whose queries are missing in `others`.
    """
    batch, length, heads, width = attended.shape
    blocks = others.shape[1] // rows
    flat = [array.reshape(*array.shape[:2], heads * width) for array in (attended, others)]

    def inner(sample: jax.Array, block: jax.Array) -> tuple[jax.Array, jax.Array, int]:
        return sample, jnp.clip(block - before, 0, blocks - 1), 0

    whole = pl.BlockSpec((None, rows, heads * width), lambda sample, block: (sample, block, 0))
    mixed = pl.pallas_call(
        functools.partial(_join, before=before, blocks=blocks, heads=heads),
        grid=(batch, pl.cdiv(length, rows)),
        in_specs=[whole, pl.BlockSpec((None, rows, heads * width), inner), pl.BlockSpec((None, rows, heads), inner)],
        out_specs=whole,
        out_shape=jax.ShapeDtypeStruct(flat[0].shape, attended.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        cost_estimate=pl.CostEstimate(
            flops=0, transcendentals=0, bytes_accessed=2 * flat[0].nbytes + flat[1].nbytes + share.nbytes
        ),
        interpret=interpret,
        name="join_lots",
    )(*flat, share)
    return mixed.reshape(attended.shape)


def _join(
    attended_ref: jax.Ref, others_ref: jax.Ref, share_ref: jax.Ref, out_ref: jax.Ref, *, before: int, blocks: int, heads: int
) -> None:
    """Join `attended_ref` and `others_ref` for one block of queries. If `others` has no such block, copy `attended_ref`.

    The code loops over the heads, so that the registers hold only the values of one head.
    """
    block = pl.program_id(1)
    has_others = (block >= before) & (block < before + blocks)
    width = attended_ref.shape[1] // heads

    @pl.when(has_others)
    def _() -> None:
        for head in range(heads):
            columns = slice(head * width, (head + 1) * width)
            own = attended_ref[:, columns].astype(jnp.float32)
            other = others_ref[:, columns].astype(jnp.float32)
            out_ref[:, columns] = (own + share_ref[:, head : head + 1] * (other - own)).astype(out_ref.dtype)

    @pl.when(~has_others)
    def _() -> None:
        out_ref[...] = attended_ref[...]
