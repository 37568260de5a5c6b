"""What stands between the query and key projections and the attention: norm over all heads, rotary embedding, head groups.

On a TPU one Pallas kernel reads the projection once and writes it once, in the order in which chips exchange heads. XLA's own
trace of the same takes several passes and copies; docs/performance.md has the figures.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

ROWS = 256  # tokens a block: 2.6 MB in bfloat16 at 5,120 channels, and twice that in float32


def normalise_and_rotate(
    projected: jax.Array,
    weight: jax.Array,
    cosine: jax.Array,
    sine: jax.Array,
    *,
    eps: float,
    groups: int = 1,
    axis_name: str | None = None,
    use_pallas: bool = False,
) -> jax.Array:
    """RMS norm over all channels, then the rotary embedding, of `projected` [B, S, W]; [groups, B, S, W / groups].

    `weight` [W]; `cosine` and `sine` [S, D] float32, each value twice, for neighbouring pairs as diffusers' Wan has them.
    `axis_name` is the mesh axis that other channels lie on. Raises: NotImplementedError for the kernel with `axis_name`.
    """
    if use_pallas and axis_name is not None:
        raise NotImplementedError("the kernel norms over the channels of one chip; leave use_pallas off under tp")
    if use_pallas:
        return _by_kernel(projected, weight, cosine, sine, eps, groups)
    normal = _normalise(projected, weight, eps, axis_name)
    heads = normal.reshape(*normal.shape[:2], -1, cosine.shape[-1])
    pairs = heads.reshape(*heads.shape[:-1], -1, 2)
    turned = jnp.stack([-pairs[..., 1], pairs[..., 0]], axis=-1).reshape(heads.shape)
    rotated = heads * cosine[None, :, None] + turned * sine[None, :, None]
    return group_heads(rotated.astype(projected.dtype).reshape(projected.shape), groups)


def group_heads(value: jax.Array, groups: int) -> jax.Array:
    """[B, S, W] -> [groups, B, S, W / groups]."""
    return jnp.moveaxis(value.reshape(*value.shape[:2], groups, -1), 2, 0)


def _normalise(projected: jax.Array, weight: jax.Array, eps: float, axis_name: str | None) -> jax.Array:
    wide = projected.astype(jnp.float32)
    mean_square = jnp.square(wide).mean(-1, keepdims=True)
    if axis_name is not None:
        mean_square = jax.lax.pmean(mean_square, axis_name)
    return (wide * jax.lax.rsqrt(mean_square + eps) * weight.astype(jnp.float32)).astype(projected.dtype)


def _by_kernel(projected, weight, cosine, sine, eps: float, groups: int) -> jax.Array:
    batch, length, width = projected.shape
    head = cosine.shape[-1]
    rows = min(ROWS, length)
    return pl.pallas_call(
        functools.partial(_kernel, eps=eps, groups=groups),
        grid=(batch, pl.cdiv(length, rows)),
        in_specs=[
            pl.BlockSpec((None, rows, width), lambda b, s: (b, s, 0)),
            pl.BlockSpec((1, width), lambda b, s: (0, 0)),
            pl.BlockSpec((rows, head), lambda b, s: (s, 0)),
            pl.BlockSpec((rows, head), lambda b, s: (s, 0)),
        ],
        out_specs=pl.BlockSpec((groups, None, rows, width // groups), lambda b, s: (0, b, s, 0)),
        out_shape=jax.ShapeDtypeStruct((groups, batch, length, width // groups), projected.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=64 * 2**20),
        name="normalise_and_rotate",
    )(projected, weight.reshape(1, width).astype(jnp.float32), cosine, sine)


def _kernel(projected_ref, weight_ref, cosine_ref, sine_ref, out_ref, *, eps: float, groups: int) -> None:
    """One block of tokens, head by head, so that only one head's values are in registers."""
    rows, width = projected_ref.shape
    head = cosine_ref.shape[1]
    square = jnp.zeros((rows, head), jnp.float32)
    for start in range(0, width, head):
        square += jnp.square(projected_ref[:, start : start + head].astype(jnp.float32))
    scale = jax.lax.rsqrt(square.sum(1, keepdims=True) / width + eps)
    is_first_of_pair = jax.lax.broadcasted_iota(jnp.int32, (rows, head), 1) % 2 == 0
    cosine, sine = cosine_ref[...], jnp.where(is_first_of_pair, -sine_ref[...], sine_ref[...])
    heads_a_group = width // groups // head
    for index in range(width // head):
        columns = slice(index * head, (index + 1) * head)
        normal = projected_ref[:, columns].astype(jnp.float32) * scale * weight_ref[:, columns]
        turned = jnp.where(is_first_of_pair, pltpu.roll(normal, head - 1, 1), pltpu.roll(normal, 1, 1))
        rotated = (normal * cosine + turned * sine).astype(out_ref.dtype)
        place = slice((index % heads_a_group) * head, (index % heads_a_group + 1) * head)
        out_ref[index // heads_a_group, :, place] = rotated
