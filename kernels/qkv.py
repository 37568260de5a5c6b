"""The operations between the projections and the attention: norm over all heads, rotary embedding, head groups, bounds.

On a TPU three Pallas passes read each array once and write it once, in the order in which chips exchange heads. They also compute
the norms that show whether a constant maximum is safe for the attention. XLA's own program takes several times as many passes and
copies; docs/lab/tpu-kernels.md has the figures.
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
ROW_BLOCKS = (256, 128)  # tokens a grid step, the first that divides: 2.6 MB in bfloat16 for 256 at 5,120 channels
VMEM_LIMIT_BYTES = 48 * 2**20


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadBounds:
    """For each head, [B, H] float32: the largest Euclidean norm of a `query` (scaled) and of a `key`, the largest magnitude in
    `value`."""

    query: jax.Array
    key: jax.Array
    value: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """Query, key and value, each [groups, B, S, W / groups].

    With `bounds`, the query is multiplied by log2(e) * D ** -0.5 and the keys' `mean` [B, 1, W] is subtracted, which changes no
    softmax, unless `Preparation.centres_keys` says otherwise; without, neither is done and there is no mean.
    """

    query: jax.Array
    key: jax.Array
    value: jax.Array
    bounds: HeadBounds | None
    mean: jax.Array | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preparation:
    """What is fixed when `prepare` is traced: the number of head `groups` in the result; the mesh axes over which tokens and
    channels are spread, or None; whether to use the TPU's passes. With `norms_heads` the norm runs over each head's channels, not
    over all. Without `centres_keys` keys stay as they are, for an attention that also sees keys of other calls. A `head_width` is
    given if every head has angles of its own: `tables` are then [S, W / 2], and a head's first half turns with its second."""

    eps: float
    norms_heads: bool = False
    centres_keys: bool = True
    groups: int = 1
    token_axis: str | None = None
    channel_axis: str | None = None
    use_pallas: bool = False
    head_width: int | None = None

    def head(self, tables: tuple[jax.Array, jax.Array]) -> int:
        """The channels of a head."""
        return self.head_width or tables[0].shape[1]


def prepare(
    projected: tuple[jax.Array, jax.Array, jax.Array],
    norms: tuple[jax.Array, jax.Array],
    tables: tuple[jax.Array, jax.Array],
    how: Preparation,
) -> Prepared:
    """RMS norm over all channels and rotary embedding of query and key [B, S, W], and all three in head groups.

    `norms` are those of query and key, [W], or [D] for norms over heads; `tables` the cosine and sine [S, D] float32, each value
    twice, for neighbouring pairs as in diffusers' Wan; or see `Preparation.head_width`, as in diffusers' LTX-2.
    Raises: NotImplementedError for the TPU's passes with a channel axis, a length that is no multiple of 128, or angles of each
    head's own with heads of another width than 128 or an odd number of them.
    """
    if how.use_pallas:
        return _prepare_by_passes(projected, norms, tables, how)
    normalise = functools.partial(normalise_heads, eps=how.eps) if how.norms_heads else functools.partial(_normalise, how=how)
    rotate = _rotate if how.head_width is None else functools.partial(rotate_halves, head_width=how.head_width)
    query, key = (rotate(normalise(array, norm), *tables) for array, norm in zip(projected, norms, strict=False))
    query, key, value = (group_heads(array, how.groups) for array in (query, key, projected[2]))
    return Prepared(query=query, key=key, value=value, bounds=None)


def group_heads(value: jax.Array, groups: int) -> jax.Array:
    """[B, S, W] -> [groups, B, S, W / groups]."""
    return jnp.moveaxis(value.reshape(*value.shape[:2], groups, -1), 2, 0)


def ungroup_heads(grouped: jax.Array, *, use_pallas: bool = False) -> jax.Array:
    """[groups, B, S, W / groups] -> [B, S, W]."""
    groups, batch, length, width = grouped.shape
    if not use_pallas or groups == 1:
        return jnp.moveaxis(grouped, 0, 2).reshape(batch, length, -1)
    rows = _rows(length)
    return pl.pallas_call(
        functools.partial(_ungroup_kernel, groups=groups),
        grid=(batch, length // rows),
        in_specs=[pl.BlockSpec((groups, None, rows, width), lambda b, s: (0, b, s, 0))],
        out_specs=pl.BlockSpec((None, rows, groups * width), lambda b, s: (b, s, 0)),
        out_shape=jax.ShapeDtypeStruct((batch, length, groups * width), grouped.dtype),
        compiler_params=_compiler_params(),
        name="ungroup_heads",
    )(grouped)


def normalise_heads(projected: jax.Array, weight: jax.Array, *, eps: float) -> jax.Array:
    """[B, S, W], the RMS norm over each head's channels; `weight` [D]."""
    wide = projected.astype(jnp.float32).reshape(*projected.shape[:2], -1, len(weight))
    normal = wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + eps) * weight.astype(jnp.float32)
    return normal.reshape(projected.shape).astype(projected.dtype)


def _normalise(projected: jax.Array, weight: jax.Array, how: Preparation) -> jax.Array:
    wide = projected.astype(jnp.float32)
    mean_square = jnp.square(wide).mean(-1, keepdims=True)
    if how.channel_axis is not None:
        mean_square = jax.lax.pmean(mean_square, how.channel_axis)
    return (wide * jax.lax.rsqrt(mean_square + how.eps) * weight.astype(jnp.float32)).astype(projected.dtype)


def _rotate(normal: jax.Array, cosine: jax.Array, sine: jax.Array) -> jax.Array:
    """[B, S, W]: (a, b) -> (a cos - b sin, b cos + a sin) for every pair of neighbours."""
    heads = normal.reshape(*normal.shape[:2], -1, cosine.shape[-1])
    pairs = heads.reshape(*heads.shape[:-1], -1, 2)
    turned = jnp.stack([-pairs[..., 1], pairs[..., 0]], axis=-1).reshape(heads.shape)
    rotated = heads * cosine[None, :, None] + turned * sine[None, :, None]
    return rotated.astype(normal.dtype).reshape(normal.shape)


def rotate_halves(normal: jax.Array, cosine: jax.Array, sine: jax.Array, *, head_width: int) -> jax.Array:
    """[B, S, W] with tables [S, W / 2]: (a, b) -> (a cos - b sin, b cos + a sin), a the first half of a head and b the second."""
    heads = normal.reshape(*normal.shape[:2], -1, head_width).astype(jnp.float32)
    cosine, sine = (table.reshape(len(table), -1, head_width // 2) for table in (cosine, sine))
    first, second = jnp.split(heads, 2, axis=-1)
    rotated = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return rotated.astype(normal.dtype).reshape(normal.shape)


def _prepare_by_passes(
    projected: tuple[jax.Array, jax.Array, jax.Array],
    norms: tuple[jax.Array, ...],
    tables: tuple[jax.Array, jax.Array],
    how: Preparation,
) -> Prepared:
    if how.channel_axis is not None:
        raise NotImplementedError("the TPU's passes norm over the channels of one chip; leave them off under tp")
    query, key, value = projected
    head = how.head(tables)
    if how.head_width is not None and (head != LANES or query.shape[2] % (2 * head)):
        raise NotImplementedError(f"the TPU's passes turn the halves of an even number of heads of {LANES}; leave them off")
    if how.norms_heads:
        norms = tuple(jnp.tile(norm, query.shape[2] // head) for norm in norms)
    query, query_square = _rotating_pass(query, norms[0], tables, how, scale=LOG2_E * head**-0.5)
    if how.centres_keys:
        key, key_sum = _rotating_pass(key, norms[1], tables, dataclasses.replace(how, groups=1), statistic="sum")
        mean = key_sum.sum(1) / key.shape[2]
        mean = mean if how.token_axis is None else jax.lax.pmean(mean, how.token_axis)
        key, key_square = _shifting_pass(key[0], mean, how.groups, head, statistic="square")
    else:
        mean = None
        key, key_square = _rotating_pass(key, norms[1], tables, how)
    zeros = jnp.zeros((len(value), 1, value.shape[2]), jnp.float32)
    value, magnitude = _shifting_pass(value, zeros, how.groups, head, statistic="magnitude")
    largest = [_largest(blocks, head, how.token_axis) for blocks in (query_square, key_square, magnitude)]
    bounds = HeadBounds(query=jnp.sqrt(largest[0]), key=jnp.sqrt(largest[1]), value=largest[2])
    return Prepared(query=query, key=key, value=value, bounds=bounds, mean=mean)


def _largest(blocks: jax.Array, head: int, token_axis: str | None) -> jax.Array:
    """Each head's maximum [B, H] from the blocks' maxima [B, N, 1, W]."""
    largest = blocks.max((1, 2)).reshape(blocks.shape[0], -1, head).max(2)
    return largest if token_axis is None else jax.lax.pmax(largest, token_axis)


def _rows(length: int) -> int:
    rows = next((rows for rows in ROW_BLOCKS if length % rows == 0), None)
    if rows is None:
        raise NotImplementedError(f"the TPU's passes take a multiple of {ROW_BLOCKS[-1]} tokens, not {length}; pad them")
    return rows


def _compiler_params() -> pltpu.CompilerParams:
    return pltpu.CompilerParams(dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=VMEM_LIMIT_BYTES)


def _rotating_pass(
    projected: jax.Array,
    weight: jax.Array,
    tables: tuple[jax.Array, jax.Array],
    how: Preparation,
    *,
    scale: float = 1.0,
    statistic: Statistic = "square",
) -> tuple[jax.Array, jax.Array]:
    """Normalised, rotated and scaled [groups, B, S, W / groups], and a statistic of every block of tokens [B, N, 1, W]."""
    batch, length, width = projected.shape
    rows = _rows(length)
    table = pl.BlockSpec((rows, tables[0].shape[1]), lambda b, s: (s, 0))
    turn = _turned_neighbours if how.head_width is None else _turned_halves
    options = dict(head=how.head(tables), turn=turn, eps=how.eps, scale=scale, statistic=statistic, norms_heads=how.norms_heads)
    return _pass(
        functools.partial(_rotating_kernel, **options),
        "normalise_and_rotate",
        (batch, length, width, rows, how.groups),
        projected.dtype,
        [pl.BlockSpec((1, width), lambda b, s: (0, 0)), table, table],
        None if how.head_width is None else 2 * projected.nbytes + 2 * batch * tables[0].nbytes,
    )(projected, weight.reshape(1, width).astype(jnp.float32), *tables)


def _shifting_pass(
    array: jax.Array, shift: jax.Array, groups: int, head: int, *, statistic: Statistic
) -> tuple[jax.Array, jax.Array]:
    """`array` [B, S, W] less `shift` [B, 1, W], in groups, and a statistic of every block of tokens [B, N, 1, W]."""
    batch, length, width = array.shape
    return _pass(
        functools.partial(_shifting_kernel, head=head, statistic=statistic),
        "shift_and_group",
        (batch, length, width, _rows(length), groups),
        array.dtype,
        [pl.BlockSpec((None, 1, width), lambda b, s: (b, 0, 0))],
    )(array, shift)


def _pass(
    kernel: Callable[..., None],
    name: str,
    shape: tuple[int, int, int, int, int],
    dtype: jnp.dtype,
    specs: list[pl.BlockSpec],
    num_bytes: int | None = None,
) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """A Pallas call over blocks of tokens that reads [B, S, W] and more, and writes the groups and one statistic. `num_bytes`
    tells XLA how many it reads and writes, where that is much more than the array twice."""
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
        compiler_params=_compiler_params(),
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
    turn: Callable[[jax.Ref, jax.Ref, int, float], Callable[[jax.Array, int], jax.Array]],
    eps: float,
    scale: float,
    statistic: Statistic,
    norms_heads: bool,
) -> None:
    """One block of tokens, head by head, so that only one head's values are in registers."""
    whole = None if norms_heads else _inverse_norm(array_ref, head, eps)
    turned = turn(cosine_ref, sine_ref, head, scale)
    for start in range(0, array_ref.shape[1], head):
        columns = slice(start, start + head)
        normal = array_ref[:, columns].astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.square(normal).sum(1, keepdims=True) / head + eps) if whole is None else whole
        rotated = turned(normal * inverse * weight_ref[:, columns], start).astype(out_ref.dtype)
        _store(out_ref, rotated, start)
        statistic_ref[:, columns] = _summary(rotated, statistic)


def _inverse_norm(array_ref: jax.Ref, head: int, eps: float) -> jax.Array:
    """[N, 1] float32: one over the root mean square of each row, summed head by head."""
    rows, width = array_ref.shape
    square = jnp.zeros((rows, head), jnp.float32)
    for start in range(0, width, head):
        square += jnp.square(array_ref[:, start : start + head].astype(jnp.float32))
    return jax.lax.rsqrt(square.sum(1, keepdims=True) / width + eps)


def _turned_neighbours(cosine_ref: jax.Ref, sine_ref: jax.Ref, head: int, scale: float) -> Callable[[jax.Array, int], jax.Array]:
    """A function of a head's values [N, D] and its first channel: neighbours turned and scaled, by one table for all heads."""
    is_first = jax.lax.broadcasted_iota(jnp.int32, cosine_ref.shape, 1) % 2 == 0
    cosine, sine = cosine_ref[...] * scale, jnp.where(is_first, -sine_ref[...], sine_ref[...]) * scale

    def turned(normal: jax.Array, start: int) -> jax.Array:
        others = jnp.where(is_first, pltpu.roll(normal, head - 1, 1), pltpu.roll(normal, 1, 1))
        return normal * cosine + others * sine

    return turned


def _turned_halves(cosine_ref: jax.Ref, sine_ref: jax.Ref, head: int, scale: float) -> Callable[[jax.Array, int], jax.Array]:
    """The same for halves and each head's own angles: tables [N, W / 2], of which two heads fill as many lanes as one head."""
    half = head // 2
    is_first = jax.lax.broadcasted_iota(jnp.int32, (cosine_ref.shape[0], head), 1) < half

    def twice(table_ref: jax.Ref, start: int) -> jax.Array:
        first = start // head // 2 * head
        pair = table_ref[:, first : first + head]
        other = pltpu.roll(pair, half, 1)
        return jnp.where(is_first, pair, other) if start // head % 2 == 0 else jnp.where(is_first, other, pair)

    def turned(normal: jax.Array, start: int) -> jax.Array:
        cosine, sine = twice(cosine_ref, start), twice(sine_ref, start)
        others = pltpu.roll(normal, half, 1)
        return (normal * cosine + jnp.where(is_first, -others, others) * sine) * scale

    return turned


def _shifting_kernel(
    array_ref: jax.Ref, shift_ref: jax.Ref, out_ref: jax.Ref, statistic_ref: jax.Ref, *, head: int, statistic: Statistic
) -> None:
    for start in range(0, array_ref.shape[1], head):
        columns = slice(start, start + head)
        shifted = (array_ref[:, columns].astype(jnp.float32) - shift_ref[:, columns]).astype(out_ref.dtype)
        _store(out_ref, shifted, start)
        statistic_ref[:, columns] = _summary(shifted, statistic)


def _ungroup_kernel(grouped_ref: jax.Ref, out_ref: jax.Ref, *, groups: int) -> None:
    width = grouped_ref.shape[2]
    for group in range(groups):
        out_ref[:, group * width : (group + 1) * width] = grouped_ref[group]


def _store(out_ref: jax.Ref, values: jax.Array, start: int) -> None:
    """One head's values to its place among the groups."""
    width = out_ref.shape[2]
    out_ref[start // width, :, start % width : start % width + values.shape[1]] = values


def _summary(values: jax.Array, statistic: Statistic) -> jax.Array:
    """[1, D] float32 of one head's rows: sums, largest magnitudes, or in every lane the largest square norm of a row."""
    wide = values.astype(jnp.float32)
    if statistic == "sum":
        return wide.sum(0, keepdims=True)
    if statistic == "magnitude":
        return jnp.abs(wide).max(0, keepdims=True)
    return jnp.broadcast_to(jnp.square(wide).sum(1, keepdims=True).max(0, keepdims=True), (1, values.shape[1]))
