"""Attention for the TPU's matrix units: bfloat16 in and out, float32 sums, any lengths. Scores are not stored in HBM.

Scores are computed transposed, [keys, queries] = K Q^T. The sums of the softmax then run over sublanes, and the probabilities P
are the operand of V^T P that stays in the matrix unit. The kernel reads and writes each head in place.

The constant form subtracts no maximum from the scores, so that only the matrix units limit its speed. It computes every head for
which it provably neither overflows nor loses precision (`bounds_are_safe`). The online form computes the other heads. It follows
Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), and FlashAttention (Dao et al., 2022, algorithm 1).
Subtracting the mean key follows SageAttention (Zhang et al., 2024, section 4.2).
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
from kernels.attention.kv_lengths import KvLengths
from kernels.qkv import LOG2_E, HeadBounds

LANES = 128
SUBLANES = 8
LOWEST = -1e30  # initial running maximum; it is finite, so that exp2(-inf - LOWEST) is 0 and not NaN

Window = tuple[int, int]
Layout = Literal["heads", "columns"]
Shaped = jax.Array | jax.ShapeDtypeStruct


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """The properties of a call that are known when the kernel is traced.

    Attributes:
        window: (before, after). Query i sees the keys i - before to i + after. None means all keys.
        layout: the shape in which the kernel reads its arrays: "heads" is [B, H, S, D], "columns" is [B, S, H * D].
        min_kv_length: a lower bound of the number of keys that a sample sees. None if all samples see `length_kv` keys.
        has_layers: keys and values are stacked over layers, [layers, B, S, H * D].
        return_lse: the kernel also writes the log-sum-exp of each query, [B, H, 1, S].
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
    def blocks_kv(self) -> int:
        return pl.cdiv(self.length_kv, self.sizes.block_kv)

    @property
    def steps_kv(self) -> int:
        """Number of grid steps over key blocks for one query block: the most key blocks that a query block can see."""
        if self.window is None:
            return self.blocks_kv
        visible = self.sizes.block_q + sum(self.window)
        return min(self.blocks_kv, (visible - 2) // self.sizes.block_kv + 2)

    def kv_range(self, block_q: jax.Array) -> tuple[jax.Array | int, jax.Array | int]:
        """Return the indices of the first and last key block that a query block sees. Without any, the last is smaller."""
        if self.window is None:
            return 0, self.blocks_kv - 1
        before, after = self.window
        start = block_q * self.sizes.block_q
        first = jax.lax.div(jnp.maximum(start - before, 0), self.sizes.block_kv)
        last = jax.lax.div(jnp.minimum(start + self.sizes.block_q - 1 + after, self.length_kv - 1), self.sizes.block_kv)
        return first, last

    def num_unmasked_keys(self, start: int, stop: int) -> int:
        """Return how many of the keys from `start` to `stop` - 1 in a key block need no mask in any key block, because all key
        blocks run the same code. These keys end at `stop` or at a multiple of 128.
        """
        seen = self.length_kv if self.min_kv_length is None else self.min_kv_length
        num_unmasked = seen - (self.blocks_kv - 1) * self.sizes.block_kv
        return max(0, min(stop, num_unmasked // LANES * LANES) - start)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelOptions:
    """Options of `tpu_attention`, see `TpuOptions` and `AttentionOptions` in `api` for most of them.

    Attributes:
        sizes, online_sizes: block sizes of the constant and of the online form.
        bounds: set only if `kernels.qkv` prepared the arrays. `scale` and `smooth_keys` are then ignored. If None, the bounds are
            computed.
        tests_bounds: if False, every head uses the online form. For few keys, this costs less than computing the bounds.
        return_lse: also return the log-sum-exp of each query, [B, S_q, H] float32. `smooth_keys` must then be False or ignored,
            because subtracting the mean key changes the log-sum-exp.
    """

    scale: float
    sizes: BlockSizes
    online_sizes: BlockSizes
    window: Window | None = None
    layout: Layout = "heads"
    smooth_keys: bool = True
    num_keys: int | None = None
    bounds: HeadBounds | None = None
    tests_bounds: bool = True
    return_lse: bool = False
    vmem_limit_bytes: int | None = None
    interpret: bool | pltpu.InterpretParams = False


def tpu_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    options: KernelOptions,
    bias: jax.Array | None = None,
    *,
    kv_lengths: KvLengths | None = None,
    layer: jax.Array | None = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Compute softmax(scale * Q K^T + bias) V, [B, S_q, H, D] bfloat16. A query that sees no key yields 0.

    Args:
        query: [B, S_q, H, D] bfloat16, D a multiple of 128.
        key, value: [B, S_kv, H, D] bfloat16.
        bias: one number for each key, broadcasts to [B, 1, 1, S_kv].
        kv_lengths: the number of leading keys that each sample's queries see. Cannot be combined with `bias` or `options.window`.
        layer: index of a layer, a scalar. `key` and `value` are then [layers, B, S_kv, H, D], and the kernel reads the layer in
            place. Allowed only if `reads_layers` returns True.

    Raises: NotImplementedError for types and shapes other than these.
    """
    bounds, is_by_head = options.bounds, options.layout == "heads"
    batch, length_q, heads, width = query.shape
    num_keys = options.num_keys or key.shape[-3]
    assert not (options.return_lse and options.smooth_keys and bounds is None and options.tests_bounds), (
        "the log-sum-exp would lack the mean key"
    )
    if (reason := find_unsupported(query, key, value, bias)) is not None:
        raise NotImplementedError(reason)
    assert layer is None or reads_layers(options.layout, bounds, options.tests_bounds), "api selects the layer"
    assert kv_lengths is None or (bias is None and options.window is None), "api rejects this combination"
    if is_by_head:
        # Stores the values in the order in which the kernel reads them. Otherwise XLA chooses another order for `head_bounds` and
        # copies the values twice, which takes 2.4 % of the kernel's time.
        value = with_layout_constraint(value, MemoryLayout((0, 2, 1, 3)))
    if bias is not None:
        column = jnp.broadcast_to(bias, (batch, 1, 1, key.shape[1])).reshape(batch, key.shape[1], 1)
        bias = column.astype(jnp.float32) * LOG2_E
    scaled = query
    if bounds is None:
        scaled = (query.astype(jnp.float32) * (options.scale * LOG2_E)).astype(query.dtype)
    if bounds is None and options.tests_bounds:
        key = subtract_mean_key(key) if options.smooth_keys else key
        bounds = head_bounds(scaled, key, value)
    problem = functools.partial(
        Problem,
        batch=batch,
        length_q=length_q,
        length_kv=num_keys,
        heads=heads,
        width=width,
        window=options.window,
        layout=options.layout,
        has_bias=bias is not None,
        min_kv_length=None if kv_lengths is None else kv_lengths.minimum,
        has_layers=layer is not None,
        return_lse=options.return_lse,
    )
    arrays = [jnp.swapaxes(array, 1, 2) if is_by_head else array.reshape(*array.shape[:-2], -1) for array in (scaled, key, value)]
    call = functools.partial(
        attend_heads,
        arrays=arrays if bias is None else [*arrays, bias],
        kv_lengths=None if kv_lengths is None else kv_lengths.values,
        layer=layer,
        vmem_limit_bytes=options.vmem_limit_bytes,
        interpret=options.interpret,
    )
    online = problem(uses_online_softmax=True, sizes=options.online_sizes)
    if not options.tests_bounds:
        written = call(online, jnp.arange(batch * heads), None)
    else:
        assert bounds is not None, "computed above"
        safe = bounds_are_safe(bounds, num_keys, bias).reshape(-1)
        unsafe_count = jnp.sum(~safe, dtype=jnp.int32)
        constant = problem(uses_online_softmax=False, sizes=options.sizes)
        # The grid needs a head. If no head is safe, one unsafe head is computed, and `replace_unsafe` replaces its result.
        written = call(constant, order_heads(safe), jnp.maximum(safe.size - unsafe_count, 1))

        def replace_unsafe(written: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            replaced = call(online, order_heads(~safe), unsafe_count)
            by_head = batch, heads, 1, 1
            kept = [safe.reshape(by_head) if is_by_head else jnp.repeat(safe.reshape(batch, 1, heads), width, axis=2)]
            kept += [safe.reshape(by_head)] if options.return_lse else []
            return tuple(jnp.where(*arrays) for arrays in zip(kept, written, replaced, strict=True))

        written = jax.lax.cond(unsafe_count > 0, replace_unsafe, lambda written: written, written)
    attended = jnp.swapaxes(written[0], 1, 2) if is_by_head else written[0].reshape(query.shape)
    return (attended, jnp.swapaxes(written[1][:, :, 0], 1, 2) / LOG2_E) if options.return_lse else attended


def reads_layers(layout: Layout, bounds: HeadBounds | None, tests_bounds: bool) -> bool:
    """Return whether the kernel can read a layer in place. Computing bounds needs the layer's keys before the kernel runs."""
    return layout == "columns" and (bounds is not None or not tests_bounds)


def find_unsupported(query: Shaped, key: Shaped, value: Shaped, bias: Shaped | None) -> str | None:
    """Return an error message if the kernel does not support the arguments' types and shapes, otherwise None."""
    types = {array.dtype.name for array in (query, key, value)}
    if types != {"bfloat16"}:
        return f"the TPU kernel takes bfloat16, not {', '.join(sorted(types))}; cast, or use 'blocked'"
    if query.shape[-1] % LANES:
        return f"the TPU kernel needs a head_dim in steps of 128, not {query.shape[-1]}; use 'blocked'"
    if bias is not None and (bias.ndim != 4 or bias.shape[1:3] != (1, 1)):
        return f"the TPU kernel takes one bias a key, [B, 1, 1, S_kv], not {bias.shape}; use 'reference'"
    return None


def subtract_mean_key(key: jax.Array) -> jax.Array:
    """Subtract each head's mean key from the keys [B, S_kv, H, D]. All scores of a query change by the same amount, so that the
    softmax stays the same, and the norms of the keys become smaller.
    """
    wide = key.astype(jnp.float32)
    return (wide - wide.mean(axis=1, keepdims=True)).astype(key.dtype)


def head_bounds(scaled: jax.Array, key: jax.Array, value: jax.Array) -> HeadBounds:
    """Compute the `HeadBounds` of `scaled`, the query times log2(e) and the factor of the scores, key and value [B, S, H, D]."""
    largest_value = jnp.abs(value).max(axis=(1, 3)).astype(jnp.float32)
    norms = (jnp.sqrt(jnp.square(array.astype(jnp.float32)).sum(axis=3).max(axis=1)) for array in (scaled, key))
    return HeadBounds(query=next(norms), key=next(norms), value=largest_value)


def bounds_are_safe(bounds: HeadBounds, num_keys: int, bias: jax.Array | None = None) -> jax.Array:
    """Return whether the constant form is safe for each head, [B, H] bool.

    It is safe if its sums of exp2(scores) neither overflow nor lose significant values. `bounds` must be computed from a query
    that was multiplied by log2(e) and by the factor of the scores. `bias` [B, S_kv, 1] must be multiplied by log2(e). By
    Cauchy-Schwarz, every score is between -m and m, where m is max |q_i| * max |k_j| + max |bias|. Let N be the number of keys
    and w = max |value|.

    - Overflow: the sums of weights and of weighted values are at most N * 2^m * max(w, 1). This must be below 2^127.
    - Underflow: float32 and bfloat16 flush values below 2^-126 to 0. The sum of weights loses at most N * 2^-126 by this, and the
      sum of weighted values loses at most the same amount. The first loss is compared with the smallest weight, 2^-m, the second
      with 2^-m * w. Both relative losses must be at most 2^-10, a quarter of bfloat16's own rounding. This is true if
      m + max(-log2 w, 0) <= 126 - log2 N - 10.

    Both conditions hold if m + |log2 w| <= 116 - log2 N. The code uses 115 because of the rounding of norms and sums. For 75,600
    keys and w = 1, m may be up to 98.
    """
    bound = bounds.query * bounds.key
    if bias is not None:
        bound = bound + jnp.abs(bias).max(axis=(1, 2))[:, None]
    # If a head's bounds are NaN or its values are all 0, the comparison is False. The head then counts as unsafe.
    return bound + jnp.abs(jnp.log2(bounds.value)) <= 115 - math.ceil(math.log2(num_keys))


def order_heads(chosen: jax.Array) -> jax.Array:
    """Return the indices where `chosen` [N] is True, in ascending order, then all other indices: [N] int32."""
    return jnp.argsort(~chosen, stable=True).astype(jnp.int32)


def attend_heads(
    problem: Problem,
    order: jax.Array,
    count: jax.Array | None,
    *,
    arrays: list[jax.Array],
    vmem_limit_bytes: int | None,
    interpret: bool | pltpu.InterpretParams,
    kv_lengths: jax.Array | None = None,
    layer: jax.Array | None = None,
) -> tuple[jax.Array, ...]:
    """Run the kernel for the first `count` heads in `order`. Without a `count`, run it for all heads in `order`.

    `order` contains the numbers sample * H + head. The results of heads for which the kernel does not run are undefined.

    Args:
        arrays: query, key, value and, if used, the bias [B, S_kv, 1]. The first three have the shape of `problem.layout`.
        kv_lengths: [B], the number of keys that each sample sees, if `problem.min_kv_length` is set.

    Returns: the attention in the shape of `problem.layout` and, with `problem.return_lse`, the log-sum-exp to base 2,
    [B, H, 1, S_q].
    """
    sizes, width = problem.sizes, problem.width
    sums = (width, SUBLANES, 1) if problem.uses_online_softmax else (width, SUBLANES)
    scratch = [
        pltpu.VMEM((width, sizes.block_kv), jnp.bfloat16),
        *(pltpu.VMEM((rows, sizes.block_q), jnp.float32) for rows in sums),
    ]
    numbers = (kv_lengths, None if layer is None else layer.reshape(1))
    prefetched = [order, *(array.astype(jnp.int32) for array in numbers if array is not None)]
    in_specs, out_specs = _make_specs(problem)
    grid_spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=len(prefetched),
        grid=(pl.cdiv(problem.length_q, sizes.block_q), len(order) if count is None else count, problem.steps_kv),
        in_specs=in_specs,
        out_specs=out_specs,
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


def _make_specs(problem: Problem) -> tuple[list[pl.BlockSpec], list[pl.BlockSpec]]:
    """Return the BlockSpecs of the inputs and of the outputs.

    The indices of a grid step are a query block, an entry in `order` (the first scalar-prefetch argument), and a step over key
    blocks. With `has_layers`, the last scalar-prefetch argument is the layer to read.
    """
    is_by_head, sizes, heads = problem.layout == "heads", problem.sizes, problem.heads

    def block_kv(block_q: jax.Array, step: jax.Array) -> jax.Array:
        if problem.window is None:
            return step
        first, last = problem.kv_range(block_q)
        return jnp.clip(first + step, 0, jnp.maximum(last, 0))

    def make_spec(block: int, row: Callable[..., jax.Array], has_layers: bool = False) -> pl.BlockSpec:
        def index(
            block_q: jax.Array, entry: jax.Array, step: jax.Array, order: jax.Ref, *others: jax.Ref
        ) -> tuple[jax.Array | int, ...]:
            layer = (others[-1][0],) if has_layers else ()
            sample, head = jax.lax.div(order[entry], heads), jax.lax.rem(order[entry], heads)
            place = (sample, head, row(block_q, step), 0) if is_by_head else (sample, row(block_q, step), head)
            return *layer, *place

        shape = (None, None, block, problem.width) if is_by_head else (None, block, problem.width)
        return pl.BlockSpec((None, *shape) if has_layers else shape, index)

    query, key = make_spec(sizes.block_q, lambda block_q, step: block_q), make_spec(sizes.block_kv, block_kv, problem.has_layers)
    bias = pl.BlockSpec(
        (None, sizes.block_kv, 1),
        lambda block_q, entry, step, order, *others: (jax.lax.div(order[entry], heads), block_kv(block_q, step), 0),
    )
    lse = pl.BlockSpec(
        (None, None, 1, sizes.block_q),
        lambda block_q, entry, step, order, *others: (
            jax.lax.div(order[entry], heads),
            jax.lax.rem(order[entry], heads),
            0,
            block_q,
        ),
    )
    return [query, key, key, *([bias] if problem.has_bias else [])], [query, *([lse] if problem.return_lse else [])]


def _kernel(order_ref: jax.Ref, *refs: jax.Ref, problem: Problem, inputs: int) -> None:
    """Run one grid step: attend with one query block of one head to one key block.

    Running sums stay in scratch memory over all steps of a query block. The first is the sum of weighted values [D, block_q], the
    second the sum of weights [8, block_q], as a partial sum for each sublane. The online form has the running maximum [1,
    block_q] too.
    """
    kv_lengths_ref, refs = (None, refs) if problem.min_kv_length is None else (refs[0], refs[1:])
    refs = refs[1:] if problem.has_layers else refs  # removes the index of the layer, which only the BlockSpecs need
    output_ref, *refs_after = refs[inputs:]
    lse_ref, (value_t_ref, *sum_refs) = (refs_after[0], refs_after[1:]) if problem.return_lse else (None, refs_after)
    sums = list(zip(sum_refs, (0.0, 0.0, LOWEST), strict=False))
    block_q, step = pl.program_id(0), pl.program_id(2)
    first, last = problem.kv_range(block_q)
    num_keys = problem.length_kv
    if kv_lengths_ref is not None:
        num_keys = kv_lengths_ref[jax.lax.div(order_ref[pl.program_id(1)], problem.heads)]
    position = _Position(block_q=block_q, block_kv=first + step, is_first=step == 0, num_keys=num_keys)

    attend = functools.partial(_attend_block, refs[:inputs], value_t_ref, sums, position, problem)
    if problem.window is None:
        attend()
    else:  # the first step of a query block always runs, because it initialises the sums
        pl.when(position.is_first | (position.block_kv <= last))(attend)

    @pl.when(step == problem.steps_kv - 1)
    def _() -> None:
        # The weighted values are divided by the sums of weights, and written transposed, [block_q, D]. This runs only once per
        # query block, so a loop with short code is fast enough.
        chunk = math.gcd(problem.sizes.block_q, 256)

        def write_chunk(index: jax.Array, carry: None) -> None:
            columns = pl.ds(pl.multiple_of(index * chunk, chunk), chunk)
            total = sum_refs[1][:, columns].sum(axis=0, keepdims=True)
            inverse = jnp.where(total > 0, 1 / total, 0)
            output_ref[columns] = (sum_refs[0][:, columns] * inverse).T.astype(output_ref.dtype)
            return carry

        jax.lax.fori_loop(0, problem.sizes.block_q // chunk, write_chunk, None)
        if lse_ref is not None:  # to base 2
            lse = jnp.log2(sum_refs[1][...].sum(axis=0, keepdims=True))
            lse_ref[...] = lse + sum_refs[2][...] if problem.uses_online_softmax else lse


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Position:
    """The indices of a grid step's query block and key block, and the number of keys that the sample sees. `is_first` is true in
    the first step of a query block.
    """

    block_q: jax.Array
    block_kv: jax.Array
    is_first: jax.Array
    num_keys: jax.Array | int


def _attend_block(
    inputs: Sequence[jax.Ref], value_t_ref: jax.Ref, sums: Sequence[tuple[jax.Ref, float]], position: _Position, problem: Problem
) -> None:
    """Transpose the values of the key block to [D, block_kv]. Then add the key block's weights and weighted values to the running
    sums.

    The loop over chunks is a software pipeline: one iteration computes the scores of a chunk, and the weights and weighted values
    of earlier chunks. The compiler's scheduler can therefore overlap exponentials with matrix products (docs/lab/tpu-kernels.md).
    """
    sizes, value_ref = problem.sizes, inputs[2]
    num_unmasked = problem.num_unmasked_keys(0, sizes.block_kv)
    if num_unmasked:
        value_t_ref[:, :num_unmasked] = value_ref[:num_unmasked].T
    if num_unmasked < sizes.block_kv:  # values after the last visible key become 0, because they may be NaN
        value = value_ref[num_unmasked:]
        index = position.block_kv * sizes.block_kv + num_unmasked + jax.lax.broadcasted_iota(jnp.int32, value.shape, 0)
        value_t_ref[:, num_unmasked:] = jnp.where(index < position.num_keys, value, 0).T
    states = {
        start: [jnp.where(position.is_first, empty, ref[:, start : start + sizes.chunk_q]) for ref, empty in sums]
        for start in range(0, sizes.block_q, sizes.chunk_q)
    }
    chunks = [(start_q, start_kv) for start_q in states for start_kv in range(0, sizes.block_kv, sizes.chunk_kv)]
    scored, weighed = [], []
    wait = 1 if problem.uses_online_softmax else 0
    for index in range(len(chunks) + wait + 1):
        if index < len(chunks):
            scored.append((chunks[index], _compute_scores(inputs, position, chunks[index], problem)))
        if 0 <= index - wait < len(chunks):
            chunk, scores = scored.pop(0)
            state, shrink = states[chunk[0]], None  # the factor rescales earlier weighted values to the new maximum
            if wait:
                maximum = jnp.maximum(state[2], scores.max(axis=0, keepdims=True))
                weights = jnp.exp2(scores - maximum)
                shrink = jnp.exp2(state[2] - maximum)
                state[1], state[2] = state[1] * shrink, maximum
            else:  # the scores cannot overflow
                weights = jnp.exp2(scores)
            # Only whole registers are added here, to 8 rows. The rows are added once, in the last step of a query block.
            state[1] = state[1] + weights.reshape(-1, SUBLANES, weights.shape[1]).sum(axis=0)
            weighed.append((chunk, weights.astype(jnp.bfloat16), shrink))
        if index > wait:
            (start_q, start_kv), weights, shrink = weighed.pop(0)
            product = jnp.dot(value_t_ref[:, start_kv : start_kv + sizes.chunk_kv], weights, preferred_element_type=jnp.float32)
            state = states[start_q]
            state[0] = (state[0] if shrink is None else state[0] * shrink) + product
    for start_q, state in states.items():
        for (ref, _), array in zip(sums, state, strict=True):
            ref[:, start_q : start_q + sizes.chunk_q] = array


def _compute_scores(inputs: Sequence[jax.Ref], position: _Position, starts: tuple[int, int], problem: Problem) -> jax.Array:
    """Compute a chunk's scores with bias, [chunk_kv, chunk_q] float32, -inf where the key is after the last visible key or
    outside the window. `starts` are the indices of the chunk's first query and first key within their blocks.
    """
    start_q, start_kv = starts
    rows = slice(start_kv, start_kv + problem.sizes.chunk_kv)
    query = inputs[0][start_q : start_q + problem.sizes.chunk_q]
    contract_width = (((1,), (1,)), ((), ()))
    scores = jax.lax.dot_general(inputs[1][rows], query, contract_width, preferred_element_type=jnp.float32)
    if problem.has_bias:
        scores = scores + inputs[3][rows]
    num_unmasked = problem.num_unmasked_keys(start_kv, start_kv + scores.shape[0]) if problem.window is None else 0
    if num_unmasked == scores.shape[0]:
        return scores
    masked_rows = scores[num_unmasked:]
    first_key = position.block_kv * problem.sizes.block_kv + start_kv + num_unmasked
    key = first_key + jax.lax.broadcasted_iota(jnp.int32, masked_rows.shape, 0)
    is_visible = key < position.num_keys
    if problem.window is not None:
        before, after = problem.window
        first_query = position.block_q * problem.sizes.block_q + start_q
        distance = key - (first_query + jax.lax.broadcasted_iota(jnp.int32, masked_rows.shape, 1))
        is_visible &= (distance >= -before) & (distance <= after)
    masked = jnp.where(is_visible, masked_rows, -jnp.inf)
    return jnp.concatenate([scores[:num_unmasked], masked]) if num_unmasked else masked
