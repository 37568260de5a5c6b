"""Attention for the TPU's matrix units: bfloat16 in and out, float32 sums, any lengths, no scores in memory.

Scores are computed transposed, [keys, queries] = K Q^T, so that the softmax's sums run over sublanes and the probabilities are
the stationary operand of V^T P. Two forms of one kernel: one with a constant maximum, which needs no rescaling and is limited
by the matrix units, for every head whose scores provably fit float32's exponents (`constant_maximum_is_safe`, decided on the
device), and the online softmax for the others. Heads are read and written in place, as 128-wide columns of [B, S, H * D].

The online form follows Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), and FlashAttention
(Dao et al., 2022, algorithm 1); subtracting the mean key follows SageAttention (Zhang et al., 2024, section 4.2).
This module must not choose between implementations; that is `api`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.layout import Layout as MemoryLayout
from jax.experimental.layout import with_layout_constraint
from jax.experimental.pallas import tpu as pltpu

from kernels.attention.block_sizes import BlockSizes
from kernels.attention.counts import KeyCounts
from kernels.qkv import LOG2_E, HeadBounds

LANES = 128
SUBLANES = 8
LOWEST = -1e30  # where the running maximum starts: finite, so that exp2(-inf - LOWEST) is 0 and not NaN

Window = tuple[int, int]
Layout = Literal["heads", "columns"]
Shaped = jax.Array | jax.ShapeDtypeStruct


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """What is fixed when the kernel is traced.

    `window` is (keys visible before, after the query's own index) or None. `layout` is how the kernel addresses its arrays:
    "heads" as [B, H, S, D], "columns" as [B, S, H * D]. `min_kv_length` is None if all samples see `length_kv` keys; else each
    sees a number of its own between the two. With `has_layers` keys and values are those of several layers, [layers, B, S, H *
    D]. With `return_lse` the kernel also writes the queries' log-sums, [B, H, 1, S].
    """

    batch: int
    length_q: int
    length_kv: int
    heads: int
    width: int
    window: Window | None
    layout: Layout
    has_bias: bool
    uses_online_softmax: bool
    sizes: BlockSizes
    min_kv_length: int | None = None
    has_layers: bool = False
    return_lse: bool = False

    @property
    def blocks_q(self) -> int:
        return pl.cdiv(self.length_q, self.sizes.block_q)

    @property
    def blocks_kv(self) -> int:
        return pl.cdiv(self.length_kv, self.sizes.block_kv)

    @property
    def steps_kv(self) -> int:
        """How many key blocks one query block visits; with a window, the most that it can touch."""
        if self.window is None:
            return self.blocks_kv
        visible = self.sizes.block_q + sum(self.window)
        return min(self.blocks_kv, (visible - 2) // self.sizes.block_kv + 2)

    def kv_range(self, block_q: jax.Array) -> tuple[jax.Array | int, jax.Array | int]:
        """First and last key block that query block `block_q` sees; the last is below the first if it sees none."""
        if self.window is None:
            return 0, self.blocks_kv - 1
        before, after = self.window
        start = block_q * self.sizes.block_q
        first = jax.lax.div(jnp.maximum(start - before, 0), self.sizes.block_kv)
        last = jax.lax.div(jnp.minimum(start + self.sizes.block_q - 1 + after, self.length_kv - 1), self.sizes.block_kv)
        return first, last

    def spec(self, block: int, row: Callable[..., jax.Array | int]) -> pl.BlockSpec:
        """`block` rows of one head; `row(block_q, step)` says which."""

        def index(
            block_q: jax.Array, entry: jax.Array, step: jax.Array, order: jax.Ref, *others: jax.Ref
        ) -> tuple[jax.Array | int, ...]:
            sample, head = jax.lax.div(order[entry], self.heads), jax.lax.rem(order[entry], self.heads)
            return (sample, head, row(block_q, step), 0) if self.layout == "heads" else (sample, row(block_q, step), head)

        shape = (None, None, block, self.width) if self.layout == "heads" else (None, block, self.width)
        return pl.BlockSpec(shape, index)

    def key_spec(self, row: Callable[..., jax.Array | int]) -> pl.BlockSpec:
        """The same of keys and values, of the layer that the last prefetched number says."""
        spec = self.spec(self.sizes.block_kv, row)
        if not self.has_layers:
            return spec
        shape, index = spec.block_shape or (), spec.index_map
        assert index is not None, "`spec` gives one"
        return pl.BlockSpec((None, *shape), lambda *indices: (indices[-1][0], *index(*indices)))

    def num_unmasked_keys(self, start: int, stop: int) -> int:
        """How many of the rows from `start` to `stop` of a key block are seen in every block for certain, in steps of 128."""
        seen = self.length_kv if self.min_kv_length is None else self.min_kv_length
        certain = seen - (self.blocks_kv - 1) * self.sizes.block_kv
        return max(0, min(stop, certain // LANES * LANES) - start)


def tpu_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    *,
    scale: float,
    sizes: BlockSizes,
    online_sizes: BlockSizes,
    window: Window | None = None,
    layout: Layout = "heads",
    smooth_keys: bool = True,
    num_keys: int | None = None,
    counts: KeyCounts | None = None,
    bounds: HeadBounds | None = None,
    tests_bounds: bool = True,
    layer: jax.Array | None = None,
    return_lse: bool = False,
    vmem_limit_bytes: int | None = None,
    interpret: bool | pltpu.InterpretParams = False,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """softmax(scale * Q K^T + bias) V, [B, S_q, H, D] bfloat16; a query that sees no key yields 0.

    `query` [B, S_q, H, D], `key`, `value` [B, S_kv, H, D], all bfloat16, D a multiple of 128; `bias`, one number a key,
    broadcasts to [B, 1, 1, S_kv]; `window` is (before, after): query i sees the keys i - before to i + after; the
    keys from `num_keys` on are finite padding, which no query sees, and with `counts` a sample's keys from its own count on
    are, too; counts go with neither bias nor window. With `bounds` the arrays are as `kernels.qkv` prepares
    them: the query scaled, the keys' mean subtracted; then `scale` and `smooth_keys` are not used. Without
    `tests_bounds` every head takes the online form: for few keys that costs less than finding the norms. With a `layer`, keys and
    values are those of several layers, [layers, B, S_kv, H, D], and that one's are read where they lie; see `reads_layers`.
    If it `return_lse`, the log-sums come too, [B, S_q, H] float32: the logarithm of the sum of exp over a query's keys. They are
    those of the keys as they are given here: keys whose mean was subtracted have others.
    Raises: NotImplementedError for anything else.
    """
    assert not (return_lse and smooth_keys and bounds is None and tests_bounds), "the mean would be missing from the log-sums"
    refuse(query, key, value, bias)
    assert layer is None or reads_layers(layout, bounds, tests_bounds), "api cuts the layer out"
    if layout == "heads":
        # The reduction over the values would make XLA choose another layout and copy them twice: 2.4 % of the kernel's time
        value = with_layout_constraint(value, MemoryLayout((0, 2, 1, 3)))
    bias = None if bias is None else _bias_column(bias, query.shape[0], key.shape[1])
    scaled = query
    if bounds is None:
        scaled = (query.astype(jnp.float32) * (scale * LOG2_E)).astype(query.dtype)
    if bounds is None and tests_bounds:
        key = subtract_mean_key(key) if smooth_keys else key
        bounds = head_bounds(scaled, key, value)
    problem = functools.partial(
        Problem,
        batch=query.shape[0],
        length_q=query.shape[1],
        length_kv=num_keys or key.shape[-3],
        heads=query.shape[2],
        width=query.shape[3],
        window=window,
        layout=layout,
        has_bias=bias is not None,
        min_kv_length=None if counts is None else counts.least,
        has_layers=layer is not None,
        return_lse=return_lse,
    )
    assert counts is None or (bias is None and window is None), "api refuses these"
    arrays = [_view(array, layout) for array in (scaled, key, value)] + ([] if bias is None else [bias])
    call = functools.partial(
        attend_heads,
        arrays=arrays,
        counts=None if counts is None else counts.values,
        layer=layer,
        vmem_limit_bytes=vmem_limit_bytes,
        interpret=interpret,
    )
    if not tests_bounds:
        written = call(problem(uses_online_softmax=True, sizes=online_sizes), jnp.arange(query.shape[0] * query.shape[2]), None)
        return _as_given(written, query, layout)
    assert bounds is not None, "found above"
    safe = bounds_are_safe(bounds, num_keys or key.shape[-3], bias).reshape(-1)
    unsafe_count = jnp.sum(~safe, dtype=jnp.int32)
    # If no head is safe, this still runs one, whose result is not used.
    written = call(problem(uses_online_softmax=False, sizes=sizes), _heads_first(safe), jnp.maximum(safe.size - unsafe_count, 1))

    def replace_unsafe(written: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        online = call(problem(uses_online_softmax=True, sizes=online_sizes), _heads_first(~safe), unsafe_count)
        kept = [_per_head(safe, query, layout), *([safe.reshape(query.shape[0], -1, 1, 1)] if return_lse else [])]
        return tuple(jnp.where(*arrays) for arrays in zip(kept, written, online, strict=True))

    written = jax.lax.cond(unsafe_count > 0, replace_unsafe, lambda written: written, written)
    return _as_given(written, query, layout)


def _as_given(written: tuple[jax.Array, ...], query: jax.Array, layout: Layout) -> jax.Array | tuple[jax.Array, jax.Array]:
    """[B, S_q, H, D] from what the kernel writes, and the log-sums [B, S_q, H], if it wrote them: those have the base 2 there."""
    attended = jnp.swapaxes(written[0], 1, 2) if layout == "heads" else written[0].reshape(query.shape)
    return (attended, jnp.swapaxes(written[1][:, :, 0], 1, 2) / LOG2_E) if len(written) > 1 else attended


def _per_head(flags: jax.Array, query: jax.Array, layout: Layout) -> jax.Array:
    """Flags [B * H] so that they broadcast to the array that the kernel writes."""
    batch, _, heads, width = query.shape
    if layout == "heads":
        return flags.reshape(batch, heads, 1, 1)
    return jnp.repeat(flags.reshape(batch, 1, heads), width, axis=2)


def _view(array: jax.Array, layout: Layout) -> jax.Array:
    """[B, S, H, D] as the kernel addresses it: no copy if the producer laid it out so."""
    return jnp.swapaxes(array, 1, 2) if layout == "heads" else array.reshape(*array.shape[:-2], -1)


def reads_layers(layout: Layout, bounds: HeadBounds | None, tests_bounds: bool) -> bool:
    """Whether the kernel can read one layer of many where it lies: not if all keys must be looked at before."""
    return layout == "columns" and (bounds is not None or not tests_bounds)


def refuse(query: Shaped, key: Shaped, value: Shaped, bias: Shaped | None) -> None:
    """Raises: NotImplementedError, with the reason, if this kernel cannot take the arguments."""
    types = {array.dtype.name for array in (query, key, value)}
    if types != {"bfloat16"}:
        raise NotImplementedError(f"the TPU kernel takes bfloat16, not {', '.join(sorted(types))}; cast, or use 'blocked'")
    if query.shape[-1] % LANES:
        raise NotImplementedError(f"the TPU kernel needs a head_dim in steps of 128, not {query.shape[-1]}; use 'blocked'")
    if bias is not None and (bias.ndim != 4 or bias.shape[1:3] != (1, 1)):
        raise NotImplementedError(f"the TPU kernel takes one bias a key, [B, 1, 1, S_kv], not {bias.shape}; use 'reference'")


def subtract_mean_key(key: jax.Array) -> jax.Array:
    """[B, S_kv, H, D]. The softmax does not change, since every score of a query moves by the same amount; the norms shrink."""
    wide = key.astype(jnp.float32)
    return (wide - wide.mean(axis=1, keepdims=True)).astype(key.dtype)


def head_bounds(scaled: jax.Array, key: jax.Array, value: jax.Array) -> HeadBounds:
    """The bounds of arrays [B, S, H, D], the query scaled by log2(e) * scale."""
    largest_value = jnp.abs(value).max(axis=(1, 3)).astype(jnp.float32)
    return HeadBounds(query=_largest_norm(scaled), key=_largest_norm(key), value=largest_value)


def constant_maximum_is_safe(scaled: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """[B, H] bool, `bounds_are_safe` of these arrays; `bias` [B, S_kv, 1] log2(e) times the bias."""
    return bounds_are_safe(head_bounds(scaled, key, value), key.shape[1], bias)


def bounds_are_safe(bounds: HeadBounds, num_keys: int, bias: jax.Array | None = None) -> jax.Array:
    """[B, H] bool: whether sums of exp2(scores) neither overflow nor lose significant values, with nothing subtracted.

    The query is scaled by log2(e) * scale and `bias` [B, S_kv, 1] by log2(e). By Cauchy-Schwarz every score lies within +-m,
    m = max |q_i| * max |k_j| + max |bias|. Let N be the number of keys, w = max |value|:
    - Sums stay below N * 2^m * max(w, 1), which must be below 2^127.
    - float32 and bfloat16 flush values below 2^-126 to 0, so a row's sum loses at most N * 2^-126 and its product with the values
      as much again, against a weight of at least 2^-m and a product of at most 2^-m * w. Both errors stay below 2^-10, a
      quarter of bfloat16's own rounding, if m + max(-log2 w, 0) <= 126 - log2 N - 10.
    m + |log2 w| <= 116 - log2 N, less 1 for the rounding of norms and sums, gives both. At 75,600 keys m may reach 98.
    """
    bound = bounds.query * bounds.key
    if bias is not None:
        bound = bound + jnp.abs(bias).max(axis=(1, 2))[:, None]
    # NaN or no value at all compares as unsafe
    return bound + jnp.abs(jnp.log2(bounds.value)) <= 115 - math.ceil(math.log2(num_keys))


def _largest_norm(array: jax.Array) -> jax.Array:
    """[B, H] float32, the largest Euclidean norm over the sequence of [B, S, H, D]."""
    return jnp.sqrt(jnp.square(array.astype(jnp.float32)).sum(axis=3).max(axis=1))


def _bias_column(bias: jax.Array, batch: int, length_kv: int) -> jax.Array:
    """[B, S_kv, 1] float32 in units of log2, from what broadcasts to [B, 1, 1, S_kv]."""
    column = jnp.broadcast_to(bias, (batch, 1, 1, length_kv)).reshape(batch, length_kv, 1)
    return column.astype(jnp.float32) * LOG2_E


def _heads_first(chosen: jax.Array) -> jax.Array:
    """[N] int32: the indices where `wanted` [N] is true, in order, then the others."""
    return jnp.argsort(~chosen, stable=True).astype(jnp.int32)


def attend_heads(
    problem: Problem,
    order: jax.Array,
    count: jax.Array | None,
    *,
    arrays: list[jax.Array],
    vmem_limit_bytes: int | None,
    interpret: bool | pltpu.InterpretParams,
    counts: jax.Array | None = None,
    layer: jax.Array | None = None,
) -> tuple[jax.Array, ...]:
    """Attend with the heads order[:count] (batch * H + head), all if it is None; the result for other heads is
    undefined. `counts` [B] are the keys that each sample sees, if the problem leaves them open; `layer` is the one that is
    attended to, if it has several. The result is as `Problem.layout` says; after it, with `return_lse`, log-sums to the base
    2."""
    sizes, width = problem.sizes, problem.width
    sums = (width, SUBLANES, 1) if problem.uses_online_softmax else (width, SUBLANES)
    scratch = [
        pltpu.VMEM((width, sizes.block_kv), jnp.bfloat16),
        *(pltpu.VMEM((rows, sizes.block_q), jnp.float32) for rows in sums),
    ]
    numbers = (counts, None if layer is None else layer.reshape(1))
    prefetched = [order, *(array.astype(jnp.int32) for array in numbers if array is not None)]
    grid_spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=len(prefetched),
        grid=(problem.blocks_q, len(order) if count is None else count, problem.steps_kv),
        in_specs=_input_specs(problem),
        out_specs=[_query_spec(problem), *([_sums_spec(problem)] if problem.return_lse else [])],
        scratch_shapes=scratch,
    )
    shapes = [jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)]
    if problem.return_lse:
        shapes.append(jax.ShapeDtypeStruct((problem.batch, problem.heads, 1, problem.length_q), jnp.float32))
    written = pl.pallas_call(
        functools.partial(_kernel, problem=problem, inputs=len(arrays)),
        grid_spec=grid_spec,
        out_shape=shapes,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=vmem_limit_bytes
        ),
        interpret=interpret,
        name="attention_online" if problem.uses_online_softmax else "attention_constant_maximum",
    )(*prefetched, *arrays)
    return tuple(written)


def _query_spec(problem: Problem) -> pl.BlockSpec:
    return problem.spec(problem.sizes.block_q, lambda block_q, step: block_q)


def _sums_spec(problem: Problem) -> pl.BlockSpec:
    """The log-sums of one head's query block, of [B, H, 1, S]."""

    def index(
        block_q: jax.Array, entry: jax.Array, step: jax.Array, order: jax.Ref, *others: jax.Ref
    ) -> tuple[jax.Array | int, ...]:
        return jax.lax.div(order[entry], problem.heads), jax.lax.rem(order[entry], problem.heads), 0, block_q

    return pl.BlockSpec((None, None, 1, problem.sizes.block_q), index)


def _input_specs(problem: Problem) -> list[pl.BlockSpec]:
    def block_kv(block_q: jax.Array, step: jax.Array) -> jax.Array:
        if problem.window is None:
            return step
        first, last = problem.kv_range(block_q)
        return jnp.clip(first + step, 0, jnp.maximum(last, 0))

    def bias_index(
        block_q: jax.Array, entry: jax.Array, step: jax.Array, order: jax.Ref, *others: jax.Ref
    ) -> tuple[jax.Array | int, ...]:
        return jax.lax.div(order[entry], problem.heads), block_kv(block_q, step), 0

    key = problem.key_spec(block_kv)
    bias = pl.BlockSpec((None, problem.sizes.block_kv, 1), bias_index)
    return [_query_spec(problem), key, key] + ([bias] if problem.has_bias else [])


def _kernel(order_ref: jax.Ref, *refs: jax.Ref, problem: Problem, inputs: int) -> None:
    """One grid step: one head's query block with one of its key blocks.

    The sums are kept over the steps of a query block: `attended` [D, block_q], `total` [8, block_q], still apart by sublane,
    and `maximum` [1, block_q], which only the online form has.
    """
    counts_ref, refs = (None, refs) if problem.min_kv_length is None else (refs[0], refs[1:])
    refs = refs[1:] if problem.has_layers else refs  # the layer's number, which only the blocks' places depend on
    output_ref, *refs_after = refs[inputs:]
    log_sums_ref, (value_t_ref, *sum_refs) = (refs_after[0], refs_after[1:]) if problem.return_lse else (None, refs_after)
    sums = list(zip(sum_refs, (0.0, 0.0, LOWEST), strict=False))
    block_q, step = pl.program_id(0), pl.program_id(2)
    first, last = problem.kv_range(block_q)
    num_keys = problem.length_kv
    if counts_ref is not None:
        num_keys = counts_ref[jax.lax.div(order_ref[pl.program_id(1)], problem.heads)]
    position = _Position(block_q=block_q, block_kv=first + step, is_first=step == 0, num_keys=num_keys)

    def attend() -> None:
        _transpose_values(refs[2], value_t_ref, position, problem)
        _attend(refs[:inputs], value_t_ref, sums, position, problem)

    if problem.window is None:
        attend()
    else:  # the first step runs even if no key is visible, because it clears the sums
        pl.when(position.is_first | (position.block_kv <= last))(attend)

    @pl.when(step == problem.steps_kv - 1)
    def _() -> None:
        _write(output_ref, *sum_refs[:2], problem)
        if log_sums_ref is not None:
            _write_sums(log_sums_ref, *sum_refs[1:])


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Position:
    """The query block and the key block of a grid step, whether it is the query block's first step, and how many keys are
    seen."""

    block_q: jax.Array
    block_kv: jax.Array
    is_first: jax.Array
    num_keys: jax.Array | int


def _transpose_values(value_ref: jax.Ref, value_t_ref: jax.Ref, position: _Position, problem: Problem) -> None:
    """Values to [D, block_kv] once a step; those past the last key become 0, because they may be NaN."""
    block = problem.sizes.block_kv
    certain = problem.num_unmasked_keys(0, block)
    if certain:
        value_t_ref[:, :certain] = value_ref[:certain].T
    if certain < block:
        value = value_ref[certain:]
        index = position.block_kv * block + certain + jax.lax.broadcasted_iota(jnp.int32, value.shape, 0)
        value_t_ref[:, certain:] = jnp.where(index < position.num_keys, value, 0).T


def _attend(
    inputs: Sequence[jax.Ref],
    value_t_ref: jax.Ref,
    sums: Sequence[tuple[jax.Ref, float]],
    position: _Position,
    problem: Problem,
) -> None:
    """Add the key block's weights and weighted values to the sums, chunk by chunk, all unrolled for the scheduler.

    Written as a pipeline, so that the scheduler finds exponentials and matrix products to do at the same time: a chunk's
    scores run beside the weights of an earlier one and the weighted values of one before that (docs/lab/tpu-kernels.md).
    """
    sizes = problem.sizes
    weigh, wait = (_weigh_online, 1) if problem.uses_online_softmax else (_weigh, 0)
    states = {
        start: [_load(ref, slice(start, start + sizes.chunk_q), empty, position) for ref, empty in sums]
        for start in range(0, sizes.block_q, sizes.chunk_q)
    }
    chunks = [(start_q, start_kv) for start_q in states for start_kv in range(0, sizes.block_kv, sizes.chunk_kv)]
    scored, weighed = [], []
    for index in range(len(chunks) + wait + 1):
        if index < len(chunks):
            scored.append((chunks[index], _scores(inputs, position, chunks[index], problem)))
        if 0 <= index - wait < len(chunks):
            chunk, scores = scored.pop(0)
            weighed.append((chunk, weigh(states[chunk[0]], scores)))
        if index > wait:
            (start_q, start_kv), weights = weighed.pop(0)
            _add_values(states[start_q], value_t_ref[:, start_kv : start_kv + sizes.chunk_kv], *weights)
    for start_q, state in states.items():
        for (ref, _), array in zip(sums, state, strict=True):
            ref[:, start_q : start_q + sizes.chunk_q] = array


def _load(ref: jax.Ref, columns: slice, start: float, position: _Position) -> jax.Array:
    """Some columns of a sum, or what it starts from in a query block's first step."""
    return jnp.where(position.is_first, start, ref[:, columns])


def _scores(inputs: Sequence[jax.Ref], position: _Position, starts: tuple[int, int], problem: Problem) -> jax.Array:
    """[chunk_kv, chunk_q] float32, masked."""
    start_q, start_kv = starts
    rows = slice(start_kv, start_kv + problem.sizes.chunk_kv)
    query = inputs[0][start_q : start_q + problem.sizes.chunk_q]
    contract_width = (((1,), (1,)), ((), ()))
    scores = jax.lax.dot_general(inputs[1][rows], query, contract_width, preferred_element_type=jnp.float32)
    if problem.has_bias:
        scores = scores + inputs[3][rows]
    return _mask(scores, position, starts, problem)


def _mask(scores: jax.Array, position: _Position, starts: tuple[int, int], problem: Problem) -> jax.Array:
    """-inf where the key is past the end or out of the window; rows that are neither in any key block are not touched."""
    start_q, start_kv = starts
    certain = problem.num_unmasked_keys(start_kv, start_kv + scores.shape[0]) if problem.window is None else 0
    if certain == scores.shape[0]:
        return scores
    doubtful = scores[certain:]
    first_key = position.block_kv * problem.sizes.block_kv + start_kv + certain
    key = first_key + jax.lax.broadcasted_iota(jnp.int32, doubtful.shape, 0)
    is_visible = key < position.num_keys
    if problem.window is not None:
        before, after = problem.window
        first_query = position.block_q * problem.sizes.block_q + start_q
        distance = key - (first_query + jax.lax.broadcasted_iota(jnp.int32, doubtful.shape, 1))
        is_visible &= (distance >= -before) & (distance <= after)
    masked = jnp.where(is_visible, doubtful, -jnp.inf)
    return jnp.concatenate([scores[:certain], masked]) if certain else masked


def _weigh(state: list[jax.Array], scores: jax.Array) -> tuple[jax.Array, None]:
    """Weights of scores that are known to fit exp2; their sum goes to `state`."""
    weights = jnp.exp2(scores)
    state[1] = state[1] + _by_sublane(weights)
    return weights.astype(jnp.bfloat16), None


def _weigh_online(state: list[jax.Array], scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weights relative to the running maximum, and the factor by which earlier sums shrink if it grew."""
    maximum = jnp.maximum(state[2], scores.max(axis=0, keepdims=True))
    weights = jnp.exp2(scores - maximum)
    shrink = jnp.exp2(state[2] - maximum)
    state[1] = state[1] * shrink + _by_sublane(weights)
    state[2] = maximum
    return weights.astype(jnp.bfloat16), shrink


def _add_values(state: list[jax.Array], value_t: jax.Array, weights: jax.Array, shrink: jax.Array | None) -> None:
    """Add one chunk's weighted values to `attended`."""
    product = jnp.dot(value_t, weights, preferred_element_type=jnp.float32)
    state[0] = (state[0] if shrink is None else state[0] * shrink) + product


def _by_sublane(weights: jax.Array) -> jax.Array:
    """[8, queries] from [keys, queries]: adds whole registers; the eight sublanes are added once, at the end."""
    return weights.reshape(-1, SUBLANES, weights.shape[1]).sum(axis=0)


def _write(output_ref: jax.Ref, attended_ref: jax.Ref, total_ref: jax.Ref, problem: Problem) -> None:
    """Divide and turn back to [block_q, D]. A loop: it runs once per query block, so its code should be short, not fast."""
    chunk = math.gcd(problem.sizes.block_q, 256)

    def write_chunk(index: jax.Array, carry: None) -> None:
        columns = pl.ds(pl.multiple_of(index * chunk, chunk), chunk)
        total = total_ref[:, columns].sum(axis=0, keepdims=True)
        inverse = jnp.where(total > 0, 1 / total, 0)
        output_ref[columns] = (attended_ref[:, columns] * inverse).T.astype(output_ref.dtype)
        return carry

    jax.lax.fori_loop(0, problem.sizes.block_q // chunk, write_chunk, None)


def _write_sums(log_sums_ref: jax.Ref, total_ref: jax.Ref, maximum_ref: jax.Ref | None = None) -> None:
    """The logarithms to the base 2 of the sums [1, block_q]; those of the online form lie that much above its maximum."""
    log_sums = jnp.log2(total_ref[...].sum(axis=0, keepdims=True))
    log_sums_ref[...] = log_sums if maximum_ref is None else log_sums + maximum_ref[...]
