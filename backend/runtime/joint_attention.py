"""Attention over two streams of tokens together. One stream is spread over the chips. The other is short and replicated.

In shapes, S is the number of tokens of the spread stream, L of the replicated stream. W is the number of channels of all heads in
the array, D of one head.

The chips exchange tokens of the spread stream for heads, as in `ulysses`. Each chip then has some of the heads, and appends the
tokens of the replicated stream, with the same heads. The real tokens of both streams precede all padding. If the padding of the
spread stream is long enough, the replicated stream is written over it. This avoids a copy of the long arrays.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from backend.runtime.mesh import Layout, as_leaf, partition
from backend.runtime.ulysses import OwnHeads, exchange_for_heads, exchange_for_tokens, gather_groups
from kernels.attention import KvLengths
from kernels.qkv import LOG2_E, HeadBounds, Preparation, Prepared, normalise_heads, prepare


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Stream:
    """One stream of a joint attention: query, key and value, each [B, tokens, W], before the norms.

    `norms` are the weights [D] of the RMS norms of each head's query and key.
    """

    query: jax.Array
    key: jax.Array
    value: jax.Array
    norms: tuple[jax.Array, jax.Array]

    @property
    def projected(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        return self.query, self.key, self.value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Joining:
    """Constants of a joint attention. `num_tokens` is the number of real tokens in the spread stream, `eps` the constant of the
    norms.

    `attend_spread` is the function for the queries of the spread stream, if they see only some of the keys (sparse attention).
    `joint_attention` describes its arguments.
    """

    num_tokens: int
    eps: float
    attend_spread: Callable[[OwnHeads, jax.Array | int, jax.Array], jax.Array] | None = None


def joint_attention(
    layout: Layout,
    attend: Callable,
    spread: Stream,
    replicated: Stream,
    counts: jax.Array,
    tables: tuple[jax.Array, jax.Array],
    how: Joining,
) -> tuple[jax.Array, jax.Array]:
    """Compute attention over both streams together. Returns [B, S, W] for `spread` and [B, L, W] for `replicated`.

    The tokens of `spread` are divided over the chips. Their queries and keys are rotated by `tables` [S, D]. Every chip has all
    tokens of `replicated`. The first `counts` [B] of them are real, and no query attends to the others.

    Each chip calls `attend(query, key, value, bounds, lengths)` for some of the heads:

    - `key` and `value` contain the real tokens of `spread`, then the tokens of `replicated`, then padding if any is left.
    - `query` contains all or some of the tokens of `spread`, then the tokens of `replicated`.
    - `bounds` are the `HeadBounds` of these arrays, None if no Pallas pass prepared them.
    - `lengths` (`KvLengths`) is the number of real tokens of both streams together, for each sample.

    If `how.attend_spread` is given, `attend` gets only the queries of `replicated`. The queries of `spread` go to
    `how.attend_spread(own, first_query, counts)`, which returns [B, tokens, channels of the chip's heads]. `own` (`OwnHeads`)
    contains these queries, and the keys and values of both streams. `first_query` is the index of the first query's token.
    """
    local = functools.partial(_local_joint_attention, layout=layout, attend=attend, how=how)
    flat, whole, table = partition("branches", "tokens", "heads"), partition("branches", None, "heads"), partition("tokens", None)
    norms = as_leaf(P()), as_leaf(P())
    specs = tuple(Stream(query=as_leaf(place), key=as_leaf(place), value=as_leaf(place), norms=norms) for place in (flat, whole))
    in_specs = (*specs, partition("branches"), (table, table))
    return layout.on_each_chip(local, in_specs, (flat, whole))(spread, replicated, counts, tables)


def _local_joint_attention(
    spread: Stream, replicated: Stream, counts: jax.Array, tables, *, layout: Layout, attend: Callable, how: Joining
) -> tuple[jax.Array, jax.Array]:
    sp, head = layout.size("sp"), tables[0].shape[1]
    heads = spread.query.shape[2] // head
    group = math.gcd(heads, sp)
    use_pallas = layout.uses_tpu_passes(spread.query.dtype)
    preparation = Preparation(
        eps=how.eps, norms_heads=True, groups=group, token_axis="sp" if sp > 1 else None, use_pallas=use_pallas
    )
    prepared = prepare(spread.projected, spread.norms, tables, preparation)
    second, bounds = _prepare_second_stream(replicated, counts, prepared, how.eps)
    query, key, value = (exchange_for_heads(array, group, sp) for array in (prepared.query, prepared.key, prepared.value))
    key, value = (gather_groups(array, group, sp) for array in (key, value))
    own = (jax.lax.axis_index("sp") % group if sp > 1 else 0) * (heads // group)
    share = [jax.lax.dynamic_slice_in_dim(array, own * head, heads // group * head, 2) for array in second]
    key, value = (_concatenate_tokens(array, part, how.num_tokens) for array, part in zip((key, value), share[1:], strict=True))
    bounds = jax.tree.map(lambda norm: jax.lax.dynamic_slice_in_dim(norm, own, heads // group, 1), bounds)
    seen = KvLengths(values=how.num_tokens + counts, minimum=how.num_tokens)
    has_all = group == sp  # True if this chip has the queries of all tokens
    if how.attend_spread is None:
        start = how.num_tokens if has_all else query.shape[1]
        attended = attend(_concatenate_tokens(query, share[0], start), key, value, bounds, seen)
        spread_output, second_output = attended, jax.lax.dynamic_slice_in_dim(attended, start, share[0].shape[1], 1)
        if attended.shape[1] != query.shape[1]:
            spread_output = jnp.pad(attended[:, :start], ((0, 0), (0, query.shape[1] - start), (0, 0)))
    else:
        mean = prepared.mean
        if mean is not None:
            mean = jax.lax.dynamic_slice_in_dim(mean, own * head, heads // group * head, 2)
        own_heads = OwnHeads(query=query, key=key, value=value, bounds=bounds, group=group, mean=mean)
        first_query = 0 if has_all else jax.lax.axis_index("sp") // group * query.shape[1]
        spread_output = how.attend_spread(own_heads, first_query, counts)
        second_output = attend(share[0], key, value, bounds, seen)
    if group > 1:
        within = [list(range(start, start + group)) for start in range(0, sp, group)]
        second_output = jax.lax.all_gather(second_output, "sp", axis=2, tiled=True, axis_index_groups=within)
    return exchange_for_tokens(spread_output, group, sp, use_pallas=use_pallas), second_output


def _concatenate_tokens(array: jax.Array, part: jax.Array, start: int) -> jax.Array:
    """Concatenate the first `start` tokens of `array` [B, S, W] and all tokens of `part` [B, L, W], or replace tokens of `array`
    by `part` if it is long enough.
    """
    if start + part.shape[1] <= array.shape[1]:
        return jax.lax.dynamic_update_slice_in_dim(array, part, start, 1)
    return jnp.concatenate([array[:, :start], part], 1)


def _prepare_second_stream(
    stream: Stream, counts: jax.Array, first: Prepared, eps: float
) -> tuple[tuple[jax.Array, jax.Array, jax.Array], HeadBounds | None]:
    """Prepare query, key and value [B, L, W] of the replicated stream. Also return the `HeadBounds` of both streams together,
    None if no Pallas pass prepared the spread stream, `first`.

    Padding of the value becomes zero. With bounds, padding of the key also becomes zero, so that it does not raise the bounds.
    """
    is_seen = (jnp.arange(stream.query.shape[1]) < counts[:, None])[:, :, None]
    normalise = functools.partial(normalise_heads, eps=eps)
    query, key = (normalise(array, norm) for array, norm in zip(stream.projected, stream.norms, strict=False))
    value = jnp.where(is_seen, stream.value, 0)
    if first.bounds is None:
        return (query, key, value), None
    head = len(stream.norms[0])
    query = (query.astype(jnp.float32) * (LOG2_E * head**-0.5)).astype(query.dtype)
    assert first.mean is not None, "with bounds, the keys' mean was subtracted"
    key = jnp.where(is_seen, (key.astype(jnp.float32) - first.mean).astype(key.dtype), 0)

    def largest(array: jax.Array, of: jax.Array, is_norm: bool = True) -> jax.Array:
        heads = array.astype(jnp.float32).reshape(*array.shape[:2], -1, head)
        sizes = jnp.sqrt(jnp.square(heads).sum(3)) if is_norm else jnp.abs(heads).max(3)
        return jnp.maximum(of, sizes.max(1))

    of = first.bounds
    bounds = HeadBounds(query=largest(query, of.query), key=largest(key, of.key), value=largest(value, of.value, is_norm=False))
    return (query, key, value), bounds
