"""The operations between the projections and the attention: norm, rotary embedding, head groups, bounds.

Arrays [B, S, W] have S tokens with the W channels of all heads of D channels. The chips then exchange tokens for heads, so the
results are split into head groups, one for each chip. On a TPU, each Pallas pass reads and writes an array once. Keys need two
passes if the mean key is subtracted. XLA's own program moves several times as much; docs/lab/tpu-kernels.md has the figures.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

Statistic = Literal["square", "sum", "magnitude"]

LOG2_E = math.log2(math.e)
LANES = 128
# Tokens per grid step: the largest of these numbers that divides the number of tokens. A block of 256 tokens with 5,120
# channels takes 2.6 MB of the vector memory in bfloat16.
ROW_BLOCKS = (256, 128)
VMEM_LIMIT_BYTES = 48 * 2**20


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadBounds:
    """The largest Euclidean norms of each head's queries, multiplied by log2(e) * D ** -0.5, and keys, and the largest magnitude
    of its values, [B, H] float32. They limit the head's scores and sums from above.
    """

    query: jax.Array
    key: jax.Array
    value: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """The prepared query, key and value, each [groups, B, S, W / groups].

    Only the Pallas passes multiply the query by log2(e) * D ** -0.5, and compute `bounds`. With `Preparation.centres_keys`, they
    also subtract the mean key, `mean` [B, 1, W], from the keys, which does not change the softmax.
    """

    query: jax.Array
    key: jax.Array
    value: jax.Array
    bounds: HeadBounds | None
    mean: jax.Array | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preparation:
    """The options of `prepare`.

    Attributes:
        norms_heads: the RMS norm is over the channels of each head instead of over all channels.
        centres_keys: the Pallas passes subtract the mean key. Must be False if the attention also sees other keys.
        groups: number of head groups in the result.
        token_axis, channel_axis: the mesh axes over which tokens and channels are divided. None if they are not divided.
        use_pallas: use the Pallas passes for TPUs.
        head_width: the number of channels of a head, set only if each head has its own angles. `tables` are then [S, W / 2], and
            the rotation pairs channel i of a head with channel i + head_width / 2. If None, all heads have the same angles, and
            neighbouring channels are pairs.
    """

    eps: float
    norms_heads: bool = False
    centres_keys: bool = True
    groups: int = 1
    token_axis: str | None = None
    channel_axis: str | None = None
    use_pallas: bool = False
    head_width: int | None = None


def prepare(
    projected: tuple[jax.Array, jax.Array, jax.Array],
    norms: tuple[jax.Array, jax.Array],
    tables: tuple[jax.Array, jax.Array],
    preparation: Preparation,
) -> Prepared:
    """Apply the RMS norm and rotary embedding to query and key [B, S, W], and split query, key and value into head groups.

    `norms` are the weights of the norms of query and key, [W], or [D] with `norms_heads`. `tables` are cosine and sine of the
    rotary embedding, float32. They are [S, D], with the same value for both channels of a pair, as in diffusers' Wan. With
    `head_width`, they are [S, W / 2], as in diffusers' LTX-2.

    Raises: NotImplementedError if the Pallas passes do not support the arguments. The passes need S to be a multiple of 128,
    and no `channel_axis`. If `head_width` is set, it must be 128, and the number of heads must be even.
    """
    if not preparation.use_pallas:
        normalise = functools.partial(_normalise, preparation=preparation)
        if preparation.norms_heads:
            normalise = functools.partial(normalise_heads, eps=preparation.eps)
        rotate = (
            _rotate if preparation.head_width is None else functools.partial(rotate_halves, head_width=preparation.head_width)
        )
        query, key = (rotate(normalise(array, norm), *tables) for array, norm in zip(projected, norms, strict=False))
        query, key, value = (group_heads(array, preparation.groups) for array in (query, key, projected[2]))
        return Prepared(query=query, key=key, value=value, bounds=None)
    if preparation.channel_axis is not None:
        raise NotImplementedError("the TPU's passes need all channels on one chip; set use_pallas=False with tp")
    query, key, value = projected
    head = preparation.head_width or tables[0].shape[1]
    if preparation.head_width is not None and (head != LANES or query.shape[2] % (2 * head)):
        raise NotImplementedError(
            f"the TPU's passes rotate an even number of heads of width {LANES}, not {query.shape[2]} channels in heads "
            f"of {head}; set use_pallas=False"
        )
    query_norm, key_norm = norms
    if preparation.norms_heads:
        query_norm, key_norm = (jnp.tile(norm, query.shape[2] // head) for norm in norms)
    query, query_square = _rotating_pass(query, query_norm, tables, preparation, scale=LOG2_E * head**-0.5)
    if preparation.centres_keys:
        key, key_sum = _rotating_pass(key, key_norm, tables, dataclasses.replace(preparation, groups=1), statistic="sum")
        mean = key_sum.sum(1) / key.shape[2]
        mean = mean if preparation.token_axis is None else jax.lax.pmean(mean, preparation.token_axis)
        key, key_square = _shifting_pass(key[0], mean, preparation.groups, head, statistic="square")
    else:
        mean = None
        key, key_square = _rotating_pass(key, key_norm, tables, preparation)
    zeros = jnp.zeros((len(value), 1, value.shape[2]), jnp.float32)
    value, magnitude = _shifting_pass(value, zeros, preparation.groups, head, statistic="magnitude")
    largest = []  # the maxima over all tokens, also of other chips, and all channels of each head, [B, H]
    for blocks in (query_square, key_square, magnitude):
        own = blocks.max((1, 2)).reshape(len(blocks), -1, head).max(2)
        largest.append(own if preparation.token_axis is None else jax.lax.pmax(own, preparation.token_axis))
    bounds = HeadBounds(query=jnp.sqrt(largest[0]), key=jnp.sqrt(largest[1]), value=largest[2])
    return Prepared(query=query, key=key, value=value, bounds=bounds, mean=mean)


def group_heads(value: jax.Array, groups: int) -> jax.Array:
    return jnp.moveaxis(value.reshape(*value.shape[:2], groups, -1), 2, 0)


def ungroup_heads(grouped: jax.Array, *, use_pallas: bool = False) -> jax.Array:
    """Join head groups [groups, B, S, W / groups] to [B, S, W]."""
    groups, batch, length, width = grouped.shape
    if not use_pallas or groups == 1:
        return jnp.moveaxis(grouped, 0, 2).reshape(batch, length, -1)
    rows = _rows_per_step(length)
    return pl.pallas_call(
        functools.partial(_ungroup_kernel, groups=groups),
        grid=(batch, length // rows),
        in_specs=[pl.BlockSpec((groups, None, rows, width), lambda b, s: (0, b, s, 0))],
        out_specs=pl.BlockSpec((None, rows, groups * width), lambda b, s: (b, s, 0)),
        out_shape=jax.ShapeDtypeStruct((batch, length, groups * width), grouped.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=VMEM_LIMIT_BYTES),
        name="ungroup_heads",
    )(grouped)


def normalise_heads(projected: jax.Array, weight: jax.Array, *, eps: float) -> jax.Array:
    """Apply the RMS norm with `weight` [D] over the channels of each head to [B, S, W]."""
    wide = projected.astype(jnp.float32).reshape(*projected.shape[:2], -1, len(weight))
    normal = wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + eps) * weight.astype(jnp.float32)
    return normal.reshape(projected.shape).astype(projected.dtype)


def _normalise(projected: jax.Array, weight: jax.Array, preparation: Preparation) -> jax.Array:
    wide = projected.astype(jnp.float32)
    mean_square = jnp.square(wide).mean(-1, keepdims=True)
    if preparation.channel_axis is not None:
        mean_square = jax.lax.pmean(mean_square, preparation.channel_axis)
    return (wide * jax.lax.rsqrt(mean_square + preparation.eps) * weight.astype(jnp.float32)).astype(projected.dtype)


def _rotate(normal: jax.Array, cosine: jax.Array, sine: jax.Array) -> jax.Array:
    """Rotate every pair of neighbouring channels of [B, S, W] with tables [S, D]: (a, b) -> (a cos - b sin, b cos + a sin)."""
    heads = normal.reshape(*normal.shape[:2], -1, cosine.shape[-1])
    pairs = heads.reshape(*heads.shape[:-1], -1, 2)
    turned = jnp.stack([-pairs[..., 1], pairs[..., 0]], axis=-1).reshape(heads.shape)
    rotated = heads * cosine[None, :, None] + turned * sine[None, :, None]
    return rotated.astype(normal.dtype).reshape(normal.shape)


def rotate_halves(normal: jax.Array, cosine: jax.Array, sine: jax.Array, *, head_width: int) -> jax.Array:
    """Rotate [B, S, W] with tables [S, W / 2]: (a, b) -> (a cos - b sin, b cos + a sin). Here, a and b have the same place in the
    two halves of a head.
    """
    heads = normal.reshape(*normal.shape[:2], -1, head_width).astype(jnp.float32)
    cosine, sine = (table.reshape(len(table), -1, head_width // 2) for table in (cosine, sine))
    first, second = jnp.split(heads, 2, axis=-1)
    rotated = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return rotated.astype(normal.dtype).reshape(normal.shape)


def _rows_per_step(length: int) -> int:
    rows = next((rows for rows in ROW_BLOCKS if length % rows == 0), None)
    if rows is None:
        raise NotImplementedError(f"the TPU's passes take a multiple of {ROW_BLOCKS[-1]} tokens, not {length}; pad them")
    return rows


def _rotating_pass(
    projected: jax.Array,
    weight: jax.Array,
    tables: tuple[jax.Array, jax.Array],
    preparation: Preparation,
    *,
    scale: float = 1.0,
    statistic: Statistic = "square",
) -> tuple[jax.Array, jax.Array]:
    """Apply RMS norm and rotary embedding to `projected` [B, S, W], multiply it by `scale`, and split it into head groups.

    Returns: the array [groups, B, S, W / groups], and a statistic (`_store_head`) for each of N blocks of tokens, [B, N, 1, W].
    """
    batch, length, width = projected.shape
    rows = _rows_per_step(length)
    table = pl.BlockSpec((rows, tables[0].shape[1]), lambda b, s: (s, 0))
    options = dict(
        head=preparation.head_width or tables[0].shape[1],
        uses_halves=preparation.head_width is not None,
        eps=preparation.eps,
        scale=scale,
        statistic=statistic,
        norms_heads=preparation.norms_heads,
    )
    return _make_pass(
        functools.partial(_rotating_kernel, **options),
        "normalise_and_rotate",
        (batch, length, width, rows, preparation.groups),
        projected.dtype,
        [pl.BlockSpec((1, width), lambda b, s: (0, 0)), table, table],
        None if preparation.head_width is None else 2 * projected.nbytes + 2 * batch * tables[0].nbytes,
    )(projected, weight.reshape(1, width).astype(jnp.float32), *tables)


def _shifting_pass(
    array: jax.Array, shift: jax.Array, groups: int, head: int, *, statistic: Statistic
) -> tuple[jax.Array, jax.Array]:
    """Subtract `shift` [B, 1, W] from `array` [B, S, W], and split the result into head groups. Returns as `_rotating_pass`."""
    batch, length, width = array.shape
    return _make_pass(
        functools.partial(_shifting_kernel, head=head, statistic=statistic),
        "shift_and_group",
        (batch, length, width, _rows_per_step(length), groups),
        array.dtype,
        [pl.BlockSpec((None, 1, width), lambda b, s: (b, 0, 0))],
    )(array, shift)


def _make_pass(
    kernel: Callable[..., None],
    name: str,
    shape: tuple[int, int, int, int, int],
    dtype: jnp.dtype,
    specs: list[pl.BlockSpec],
    num_bytes: int | None = None,
) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Return a Pallas call that runs `kernel` on N blocks of tokens. `shape` is (B, S, W, tokens per block, groups).

    The call reads an array [B, S, W] and further arrays, whose BlockSpecs are `specs`. It writes the head groups
    [groups, B, S, W / groups] and a statistic for every block, [B, N, 1, W]. `num_bytes` is what it reads and writes, for XLA's
    estimates, if a further array is large.
    """
    batch, length, width, rows, groups = shape
    blocks = length // rows
    return pl.pallas_call(
        kernel,
        grid=(batch, blocks),
        in_specs=[pl.BlockSpec((None, rows, width), lambda b, s: (b, s, 0)), *specs],
        out_specs=[
            pl.BlockSpec((groups, None, rows, width // groups), lambda b, s: (0, b, s, 0)),
            pl.BlockSpec((None, None, 1, width), lambda b, s: (b, s, 0, 0)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct((groups, batch, length, width // groups), dtype),
            jax.ShapeDtypeStruct((batch, blocks, 1, width), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=VMEM_LIMIT_BYTES),
        cost_estimate=None if num_bytes is None else pl.CostEstimate(flops=0, transcendentals=0, bytes_accessed=num_bytes),
        name=name,
    )


def _rotating_kernel(
    array_ref: jax.Ref,
    weight_ref: jax.Ref,
    cosine_ref: jax.Ref,
    sine_ref: jax.Ref,
    out_ref: jax.Ref,
    statistic_ref: jax.Ref,
    *,
    head: int,
    uses_halves: bool,
    eps: float,
    scale: float,
    statistic: Statistic,
    norms_heads: bool,
) -> None:
    """Normalise, rotate and scale one block of tokens, one head at a time, to need few registers."""
    (rows, width), whole = array_ref.shape, None
    if not norms_heads:  # 1 / root mean square over all channels of each token, [N, 1]
        square = jnp.zeros((rows, head), jnp.float32)
        for start in range(0, width, head):
            square += jnp.square(array_ref[:, start : start + head].astype(jnp.float32))
        whole = jax.lax.rsqrt(square.sum(1, keepdims=True) / width + eps)
    turn = _make_rotation(cosine_ref, sine_ref, head, scale, uses_halves)
    for start in range(0, width, head):
        columns = slice(start, start + head)
        normal = array_ref[:, columns].astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.square(normal).sum(1, keepdims=True) / head + eps) if whole is None else whole
        rotated = turn(normal * inverse * weight_ref[:, columns], start).astype(out_ref.dtype)
        _store_head(out_ref, statistic_ref, rotated, start, statistic)


def _make_rotation(
    cosine_ref: jax.Ref, sine_ref: jax.Ref, head: int, scale: float, uses_halves: bool
) -> Callable[[jax.Array, int], jax.Array]:
    """Return a function that rotates a head [N, D], whose first channel has the index `start`, and multiplies by `scale`.

    It rotates pairs of neighbouring channels, and all heads have the same angles. With `uses_halves`, it rotates the two halves
    of a head, and each head has its own angles. The tables are then [N, W / 2], and the angles of two heads are read at once.
    """
    half = head // 2
    if not uses_halves:
        is_even = jax.lax.broadcasted_iota(jnp.int32, cosine_ref.shape, 1) % 2 == 0
        cosine, sine = cosine_ref[...] * scale, jnp.where(is_even, -sine_ref[...], sine_ref[...]) * scale

        def turn_neighbours(normal: jax.Array, start: int) -> jax.Array:
            others = jnp.where(is_even, pltpu.roll(normal, head - 1, 1), pltpu.roll(normal, 1, 1))
            return normal * cosine + others * sine

        return turn_neighbours
    is_first = jax.lax.broadcasted_iota(jnp.int32, (cosine_ref.shape[0], head), 1) < half

    def turn_halves(normal: jax.Array, start: int) -> jax.Array:
        angles = []
        for table_ref in (cosine_ref, sine_ref):
            first = start // head // 2 * head
            pair = table_ref[:, first : first + head]
            other = pltpu.roll(pair, half, 1)
            angles.append(jnp.where(is_first, pair, other) if start // head % 2 == 0 else jnp.where(is_first, other, pair))
        others = pltpu.roll(normal, half, 1)
        return (normal * angles[0] + jnp.where(is_first, -others, others) * angles[1]) * scale

    return turn_halves


def _shifting_kernel(
    array_ref: jax.Ref, shift_ref: jax.Ref, out_ref: jax.Ref, statistic_ref: jax.Ref, *, head: int, statistic: Statistic
) -> None:
    for start in range(0, array_ref.shape[1], head):
        columns = slice(start, start + head)
        shifted = (array_ref[:, columns].astype(jnp.float32) - shift_ref[:, columns]).astype(out_ref.dtype)
        _store_head(out_ref, statistic_ref, shifted, start, statistic)


def _ungroup_kernel(grouped_ref: jax.Ref, out_ref: jax.Ref, *, groups: int) -> None:
    width = grouped_ref.shape[2]
    for group in range(groups):
        out_ref[:, group * width : (group + 1) * width] = grouped_ref[group]


def _store_head(out_ref: jax.Ref, statistic_ref: jax.Ref, values: jax.Array, start: int, statistic: Statistic) -> None:
    """Write the values of one head, [N, D], whose first channel has the index `start`, into its head group. Also write a
    statistic over the N tokens, [1, D] float32: "sum" or "magnitude" (the largest) of each channel, or "square", the largest
    squared norm of a token.
    """
    width, head = out_ref.shape[2], values.shape[1]
    out_ref[start // width, :, start % width : start % width + head] = values
    wide = values.astype(jnp.float32)
    if statistic == "sum":
        found = wide.sum(0, keepdims=True)
    elif statistic == "magnitude":
        found = jnp.abs(wide).max(0, keepdims=True)
    else:
        found = jnp.broadcast_to(jnp.square(wide).sum(1, keepdims=True).max(0, keepdims=True), (1, head))
    statistic_ref[:, start : start + head] = found
