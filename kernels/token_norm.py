"""The norms of a transformer's tokens [B, S, W]: layer norm with scale and shift, and RMS norm over all heads.

On a TPU, each norm is a Pallas pass that reads and writes the tokens once. XLA's own program reads them a second time for the
variance, and repeats the norm for every tile of the matrix product that follows. docs/lab/tpu-kernels.md has the figures.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import cast

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels.qkv import LANES, ROW_BLOCKS

ROWS_AT_ONCE = 64  # tokens that are normalised at once; the sums of so few tokens fit into the registers
VMEM_LIMIT_BYTES = 48 * 2**20


def layer_norm(tokens: jax.Array, scale: jax.Array, shift: jax.Array, *, eps: float, use_pallas: bool = False) -> jax.Array:
    """Apply layer norm over the channels of `tokens` [B, S, W], multiply by `scale` and add `shift`, both [W] float32. Computed
    in float32 and rounded once.

    Raises: NotImplementedError if `use_pallas` is set and S or W is no multiple of 128.
    """
    if use_pallas:
        return _run_pass(tokens, scale, shift, eps=eps, name="layer_norm")
    wide = tokens.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    normal = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + eps)
    return (normal * scale + shift).astype(tokens.dtype)


def rms_norm(tokens: jax.Array, scale: jax.Array, *, eps: float, use_pallas: bool = False) -> jax.Array:
    """Divide `tokens` [B, S, W] by their root mean square and multiply by `scale` [W] float32, as `layer_norm` does."""
    if use_pallas:
        return _run_pass(tokens, scale, None, eps=eps, name="rms_norm")
    wide = tokens.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + eps) * scale).astype(tokens.dtype)


def _run_pass(tokens: jax.Array, scale: jax.Array, shift: jax.Array | None, *, eps: float, name: str) -> jax.Array:
    batch, length, width = tokens.shape
    rows = next((rows for rows in ROW_BLOCKS if length % rows == 0), None)
    if rows is None or width % LANES:
        raise NotImplementedError(f"the TPU's norm takes multiples of {LANES}, not {length} tokens of {width}; pad them")
    vectors = [vector.reshape(1, width).astype(jnp.float32) for vector in (scale, shift) if vector is not None]
    block = pl.BlockSpec((None, rows, width), lambda b, s: (b, s, 0))
    vector = pl.BlockSpec((1, width), lambda b, s: (0, 0))
    return pl.pallas_call(
        functools.partial(_kernel, eps=eps, is_centred=shift is not None),
        grid=(batch, length // rows),
        in_specs=[block, *[vector] * len(vectors)],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(tokens.shape, tokens.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=VMEM_LIMIT_BYTES),
        name=name,
    )(tokens, *vectors)


def _kernel(tokens_ref: jax.Ref, *refs: jax.Ref, eps: float, is_centred: bool) -> None:
    """Normalise a block of tokens, `ROWS_AT_ONCE` tokens at a time. Separate loops over the channels compute the mean (layer norm
    only), the mean square and the result.
    """
    *vector_refs, out_ref = refs
    num_rows, width = tokens_ref.shape
    columns = [slice(start, start + LANES) for start in range(0, width, LANES)]

    def normalise(index: jax.Array, carry: None) -> None:
        rows = pl.ds(pl.multiple_of(index * ROWS_AT_ONCE, ROWS_AT_ONCE), ROWS_AT_ONCE)

        def centred(lanes: slice, mean: jax.Array | float) -> jax.Array:
            return tokens_ref[rows, lanes].astype(jnp.float32) - mean

        def mean_of(values: Iterable[jax.Array]) -> jax.Array:
            total = cast(jax.Array, sum(values))  # `sum` returns an array, because `values` is not empty
            return total.sum(1, keepdims=True) / width

        mean = mean_of(centred(lanes, 0.0) for lanes in columns) if is_centred else 0.0
        inverse = jax.lax.rsqrt(mean_of(jnp.square(centred(lanes, mean)) for lanes in columns) + eps)
        for lanes in columns:
            normal = centred(lanes, mean) * inverse * vector_refs[0][:, lanes]
            shifted = normal + vector_refs[1][:, lanes] if is_centred else normal
            out_ref[rows, lanes] = shifted.astype(out_ref.dtype)
        return carry

    jax.lax.fori_loop(0, num_rows // ROWS_AT_ONCE, normalise, None)
