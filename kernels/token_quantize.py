"""The quantization of a transformer's tokens [B, S, W] to 8 bits, one scale per token. On a TPU a Pallas pass reads the tokens
once, XLA's own program twice; docs/lab/tpu-slices.md has the figures.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels.qkv import LANES, ROW_BLOCKS
from kernels.token_norm import ROWS_AT_ONCE, VMEM_LIMIT_BYTES

LARGEST = {jnp.dtype(jnp.int8): 127.0, jnp.dtype(jnp.float8_e4m3fn): 448.0}
"""The largest value of each format that is used. int8 is symmetric, so it does not use -128."""
SMALLEST_PEAK = 1e-30  # lower limit of a token's largest absolute value, so that no scale is 0


def quantize_tokens(tokens: jax.Array, dtype: jnp.dtype, *, use_pallas: bool = False) -> tuple[jax.Array, jax.Array]:
    """Quantize `tokens` [..., W] to `dtype`, rounded to the nearest. Also return their scales [..., 1] float32: a token's largest
    absolute value divided by the largest value of `dtype`.

    Raises: NotImplementedError if `use_pallas` is set and `can_run_pass` is false.
    """
    if not use_pallas:
        peak = jnp.max(jnp.abs(tokens), axis=-1, keepdims=True).astype(jnp.float32)
        factor, scale = _factor_and_scale(peak, dtype)
        scaled = tokens.astype(jnp.float32) * factor
        return (jnp.round(scaled) if dtype == jnp.int8 else scaled).astype(dtype), scale
    if not can_run_pass(tokens.shape, dtype):
        raise NotImplementedError(f"the TPU's pass takes tokens in multiples of {LANES} to int8, not {tokens.shape} to {dtype}")
    batch, length, width = tokens.shape
    rows = next(rows for rows in ROW_BLOCKS if length % rows == 0)
    block, column = (pl.BlockSpec((None, rows, size), lambda b, s: (b, s, 0)) for size in (width, 1))
    num_bytes = tokens.size * (tokens.dtype.itemsize + dtype.itemsize)
    return pl.pallas_call(
        _kernel,
        grid=(batch, length // rows),
        in_specs=[block],
        out_specs=(block, column),
        out_shape=(jax.ShapeDtypeStruct(tokens.shape, dtype), jax.ShapeDtypeStruct((batch, length, 1), jnp.float32)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=VMEM_LIMIT_BYTES),
        cost_estimate=pl.CostEstimate(flops=0, transcendentals=0, bytes_accessed=num_bytes),
        name="quantize_tokens",
    )(tokens)


def can_run_pass(shape: tuple[int, ...], dtype: jnp.dtype) -> bool:
    """Return whether the Pallas pass can quantize tokens: [B, S, W] with S and W multiples of 128, to int8."""
    return dtype == jnp.int8 and len(shape) == 3 and shape[1] % LANES == 0 and shape[2] % LANES == 0


def _factor_and_scale(peak: jax.Array, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """Return the factor that quantizes a token's values, and the token's scale (1 / factor), from its largest absolute value."""
    largest, peak = LARGEST[dtype], jnp.maximum(peak, SMALLEST_PEAK)
    return largest / peak, peak / largest


def _kernel(tokens_ref: jax.Ref, out_ref: jax.Ref, scale_ref: jax.Ref) -> None:
    """Quantize a block of tokens, `ROWS_AT_ONCE` at a time: first find each token's largest absolute value, then write."""
    num_rows, width = tokens_ref.shape
    columns = [slice(start, start + LANES) for start in range(0, width, LANES)]

    def quantize(index: jax.Array, carry: None) -> None:
        rows = pl.ds(pl.multiple_of(index * ROWS_AT_ONCE, ROWS_AT_ONCE), ROWS_AT_ONCE)
        peaks = jnp.abs(tokens_ref[rows, columns[0]].astype(jnp.float32))
        for lanes in columns[1:]:
            peaks = jnp.maximum(peaks, jnp.abs(tokens_ref[rows, lanes].astype(jnp.float32)))
        factor, scale_ref[rows, :] = _factor_and_scale(peaks.max(1, keepdims=True), out_ref.dtype)
        for lanes in columns:
            scaled = jnp.round(tokens_ref[rows, lanes].astype(jnp.float32) * factor)
            out_ref[rows, lanes] = scaled.astype(jnp.int32).astype(out_ref.dtype)
        return carry

    jax.lax.fori_loop(0, num_rows // ROWS_AT_ONCE, quantize, None)
