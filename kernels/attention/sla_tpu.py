"""TPU passes of SLA's linear attention. Each pass reads its arrays once, in the order in which the attention kernel reads them.
XLA's own program takes more time than the block-sparse attention itself, because it converts and copies all tokens several times.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

LANES = 128
ROWS = 512  # tokens in a grid step

Products = tuple[jax.Array, jax.Array]
"""The sums over all keys: features times values [B, H, D, D], and features [B, H, 1, D], float32."""


def sum_products(key: jax.Array, value: jax.Array, mean: jax.Array | None, num_keys: int, *, interpret: bool = False) -> Products:
    """Compute two sums over all keys of a head: the features of the keys, and the products of features and values. The features
    of a key are the softmax over its channels.

    `key` and `value` are [B, S, H, 128]. `mean` [B, 1, H, 128] was subtracted from the keys, and is added again. None: no mean.
    """
    batch, length, heads, width = key.shape
    mean = jnp.zeros((batch, 1, heads, width), jnp.float32) if mean is None else mean
    tokens = pl.BlockSpec((None, ROWS, heads * width), lambda sample, part: (sample, part, 0))
    products, totals = pl.pallas_call(
        functools.partial(_sum_kernel, num_keys=num_keys),
        grid=(batch, pl.cdiv(length, ROWS)),
        in_specs=[tokens, tokens, pl.BlockSpec((None, 1, heads * width), lambda sample, part: (sample, 0, 0))],
        out_specs=[
            pl.BlockSpec((None, heads, width, width), lambda sample, part: (sample, 0, 0, 0)),
            pl.BlockSpec((None, heads, 1, width), lambda sample, part: (sample, 0, 0, 0)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct((batch, heads, width, width), jnp.float32),
            jax.ShapeDtypeStruct((batch, heads, 1, width), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        cost_estimate=_estimate_cost(key, arrays=2),
        interpret=interpret,
        name="sum_linear_attention",
    )(*(array.reshape(batch, -1, heads * width) for array in (key, value, mean)))
    return products, totals


def _estimate_cost(array: jax.Array, arrays: int) -> pl.CostEstimate:
    """Estimate the work of a pass that reads and writes `arrays` arrays like `array`."""
    products = 4 * array.size * array.shape[-1]
    return pl.CostEstimate(flops=products, transcendentals=array.size, bytes_accessed=arrays * array.nbytes)


def _sum_kernel(
    key_ref: jax.Ref, value_ref: jax.Ref, mean_ref: jax.Ref, products_ref: jax.Ref, totals_ref: jax.Ref, *, num_keys: int
) -> None:
    rows = key_ref.shape[0]
    part = pl.program_id(1)

    @pl.when(part == 0)
    def _() -> None:
        products_ref[...] = jnp.zeros(products_ref.shape, jnp.float32)
        totals_ref[...] = jnp.zeros(totals_ref.shape, jnp.float32)

    is_key = part * rows + jax.lax.broadcasted_iota(jnp.int32, (rows, LANES), 0) < num_keys
    for head in range(products_ref.shape[0]):
        columns = slice(head * LANES, (head + 1) * LANES)
        features = jnp.where(is_key, _softmax(key_ref[:, columns].astype(jnp.float32) + mean_ref[:, columns]), 0)
        stored = features.astype(key_ref.dtype)
        value = jnp.where(is_key, value_ref[:, columns], 0)
        products_ref[head] += jax.lax.dot_general(stored, value, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
        totals_ref[head] += stored.astype(jnp.float32).sum(0, keepdims=True)


def add_linear(
    attended: jax.Array,
    query: jax.Array,
    products: Products,
    projection: tuple[jax.Array, jax.Array],
    factor: float,
    smallest_sum: float,
    *,
    interpret: bool = False,
) -> jax.Array:
    """Compute the projected linear attention of `query` [B, S, H, 128], and add it to `attended` [B, S, H, 128].

    `factor` is `SparseHeads.query_factor`. `projection` is described in `sla.sla_attention`. `smallest_sum` is added to the
    denominators of linear attention.
    """
    batch, length, heads, width = query.shape
    dtype = query.dtype
    sums, totals = (array.astype(dtype) for array in products)
    # `totals` is appended to `sums` as 128 equal columns, so that one matrix product also computes the denominators.
    sums = jnp.concatenate([sums, jnp.broadcast_to(jnp.swapaxes(totals, 2, 3), sums.shape)], axis=3)
    weight, bias = projection[0].T.astype(dtype), projection[1].astype(dtype).astype(jnp.float32).reshape(1, width)
    tokens = pl.BlockSpec((None, ROWS, heads * width), lambda sample, part: (sample, part, 0))
    added = pl.pallas_call(
        functools.partial(_add_kernel, factor=factor, smallest_sum=smallest_sum),
        grid=(batch, pl.cdiv(length, ROWS)),
        in_specs=[
            tokens,
            tokens,
            pl.BlockSpec((None, heads, width, 2 * width), lambda sample, part: (sample, 0, 0, 0)),
            pl.BlockSpec((width, width), lambda sample, part: (0, 0)),
            pl.BlockSpec((1, width), lambda sample, part: (0, 0)),
        ],
        out_specs=tokens,
        out_shape=jax.ShapeDtypeStruct((batch, length, heads * width), dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        cost_estimate=_estimate_cost(query, arrays=3),
        interpret=interpret,
        name="add_linear_attention",
    )(*(array.reshape(batch, length, heads * width) for array in (attended, query)), sums, weight, bias)
    return added.reshape(query.shape)


def _add_kernel(
    attended_ref: jax.Ref,
    query_ref: jax.Ref,
    sums_ref: jax.Ref,
    weight_ref: jax.Ref,
    bias_ref: jax.Ref,
    out_ref: jax.Ref,
    *,
    factor: float,
    smallest_sum: float,
) -> None:
    for head in range(sums_ref.shape[0]):
        columns = slice(head * LANES, (head + 1) * LANES)
        features = _softmax(query_ref[:, columns].astype(jnp.float32) * factor).astype(query_ref.dtype)
        sums = jnp.dot(features, sums_ref[head], preferred_element_type=jnp.float32)
        linear = (sums[:, :LANES] / (smallest_sum + sums[:, LANES:])).astype(query_ref.dtype)
        projected = (jnp.dot(linear, weight_ref[...], preferred_element_type=jnp.float32) + bias_ref[...]).astype(out_ref.dtype)
        out_ref[:, columns] = (attended_ref[:, columns].astype(jnp.float32) + projected.astype(jnp.float32)).astype(out_ref.dtype)


def _softmax(values: jax.Array) -> jax.Array:
    weights = jnp.exp(values - values.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)
