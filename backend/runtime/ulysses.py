"""Attention over a sequence that is spread over chips: tokens are exchanged for heads and back (DeepSpeed-Ulysses,
arXiv:2309.14509).

If the number of heads is no multiple of the number of chips, smaller groups of chips exchange heads. They gather keys and values
from the other groups. In shapes [B, S, W], W is the number of channels of all heads in the array.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from backend.runtime.mesh import HEADS, TEXT_HEADS, Layout, partition
from kernels.attention import add_gated_tiles, select_layer
from kernels.qkv import HeadBounds, Preparation, prepare, ungroup_heads

Projected = tuple[jax.Array, jax.Array, jax.Array]
"""Query, key and value, each [B, S, W]."""
Pair = tuple[jax.Array, jax.Array]
"""The weights of the norms of query and key, or cosine and sine of the rotary embedding."""


def self_attention(
    layout: Layout, attend: Callable, projected: Projected, norms: Pair, tables: Pair, eps: float, head_width: int | None = None
) -> jax.Array:
    """Compute the self-attention [B, S, W] of a sequence. `projected` are its query, key and value, each [B, S, W].

    Every chip applies the norms and the rotary embedding to its own tokens, then exchanges tokens for heads (see `OwnHeads`), and
    calls `attend(query, key, value, bounds)`. The first three arrays are [B, tokens, channels of the chip's heads]. `bounds` are
    the `HeadBounds` of these heads, None if no Pallas pass prepared the arrays. The chips exchange the results of `attend` back.

    `norms` are the weights [W] of the RMS norms of query and key. `tables` are cosine and sine of the rotary embedding, [S, D],
    where a head has D channels. With a `head_width` they are [S, W / 2] (see `kernels.qkv.Preparation`).
    """
    use_pallas = layout.uses_tpu_passes(projected[0].dtype)

    def local(projected, norms, tables) -> jax.Array:
        own = prepare_own_heads(projected, norms, tables, layout=layout, eps=eps, use_pallas=use_pallas, head_width=head_width)
        attended = attend(own.query, own.key, own.value, own.bounds)
        return exchange_for_tokens(attended, own.group, layout.size("sp"), use_pallas=use_pallas)

    flat, norm = partition("branches", "tokens", "heads"), partition("heads")
    table = partition("tokens", None if head_width is None else "heads")
    return layout.on_each_chip(local, ((flat,) * 3, (norm,) * 2, (table,) * 2), flat)(projected, norms, tables)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnHeads:
    """Query, key and value of the heads whose attention one chip computes, each [B, tokens, W], with W channels of these heads.

    `group` is the number of chips that exchange heads with each other. `query` has the tokens of the group, `key` and `value`
    have all tokens. `mean` [B, 1, W] is the mean key that was subtracted from the keys, None if none was or if it is not needed.
    """

    query: jax.Array
    key: jax.Array
    value: jax.Array
    bounds: HeadBounds | None
    group: int
    mean: jax.Array | None = None


def prepare_own_heads(
    projected,
    norms,
    tables,
    *,
    layout: Layout,
    eps: float,
    use_pallas: bool,
    centres_keys: bool = True,
    head_width: int | None = None,
    needs_mean: bool = False,
) -> OwnHeads:
    """Apply the norms and the rotary embedding to this chip's tokens, and exchange tokens for heads.

    The number of chips in a group is the greatest common divisor of the number of heads and sp.
    """
    sp, tp = layout.size("sp"), layout.size("tp")
    heads = projected[0].shape[2] // (head_width or tables[0].shape[1])
    group = math.gcd(heads, sp)
    how = Preparation(
        eps=eps,
        centres_keys=centres_keys,
        groups=group,
        token_axis="sp" if sp > 1 else None,
        channel_axis="tp" if tp > 1 else None,
        use_pallas=use_pallas,
        head_width=head_width,
    )
    prepared = prepare(projected, norms, tables, how)
    query, key, value = (exchange_for_heads(array, group, sp) for array in (prepared.query, prepared.key, prepared.value))
    key, value = (gather_groups(array, group, sp) for array in (key, value))
    own = jax.lax.axis_index("sp") % group * (heads // group) if sp > 1 else 0
    bounds = jax.tree.map(lambda norm: jax.lax.dynamic_slice_in_dim(norm, own, heads // group, 1), prepared.bounds)
    mean = None
    if needs_mean and prepared.mean is not None:
        width = prepared.mean.shape[2] // heads
        mean = jax.lax.dynamic_slice_in_dim(prepared.mean, own * width, heads // group * width, 2)
    return OwnHeads(query=query, key=key, value=value, bounds=bounds, group=group, mean=mean)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseHeadsResult:
    """The sparse attention of one chip's heads.

    Attributes:
        attended: the attention to tokens, [B, tokens, W].
        tiles: the attention between tiles of tokens, [B, tiles, W], only for methods that multiply it by a gate (VSA).
        counts: the two totals of `sol_attention`, [2] float32. None for other methods.
    """

    attended: jax.Array
    tiles: jax.Array | None = None
    counts: jax.Array | None = None


def sparse_self_attention(
    layout: Layout,
    attend: Callable[..., SparseHeadsResult],
    projected: Projected,
    norms: Pair,
    tables: Pair,
    eps: float,
    shared: tuple[jax.Array, ...],
    gate: jax.Array | None = None,
    has_counts: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """Compute the self-attention [B, S, W] of a sequence, with `attend` selecting the keys that each query sees.

    Each chip calls `attend(own, first_query, *shared)` with its heads (`OwnHeads`), the index of its first query's token, and the
    replicated arrays `shared`. With `has_counts`, the second result is the sum of all chips' `SparseHeadsResult.counts`. The
    other arguments are described in `self_attention`.

    The attention between tiles is multiplied by `gate` [B, S, W] and added to the attention to tokens. The chips have then
    exchanged heads back for tokens, so that they need not exchange the gate. Every chip must have whole tiles.
    """
    use_pallas, sp = layout.uses_tpu_passes(projected[0].dtype), layout.size("sp")

    def local(projected, norms, tables, shared, gate) -> tuple[jax.Array, jax.Array | None]:
        own = prepare_own_heads(projected, norms, tables, layout=layout, eps=eps, use_pallas=use_pallas, needs_mean=True)
        first_query = 0 if own.group == sp else jax.lax.axis_index("sp") // own.group * own.query.shape[1]
        result = attend(own, first_query, *shared)
        attended = exchange_for_tokens(result.attended, own.group, sp, use_pallas=use_pallas)
        if gate is not None:
            assert result.tiles is not None, "a method with a gate returns the attention of tiles"
            attended = add_gated_tiles(attended, exchange_for_tokens(result.tiles, own.group, sp, use_pallas=False), gate)
        return attended, None if result.counts is None else result.counts[None]

    flat, norm, table = partition("branches", "tokens", "heads"), partition("heads"), partition("tokens", None)
    specs = ((flat,) * 3, (norm,) * 2, (table,) * 2, (P(),) * len(shared), None if gate is None else flat)
    every_chip = P(tuple(layout.mesh.axis_names)) if has_counts else None
    attended, counts = layout.on_each_chip(local, specs, (flat, every_chip))(projected, norms, tables, shared, gate)
    return attended, None if counts is None else counts.sum(0)


def gather_groups(array: jax.Array, group: int, sp: int) -> jax.Array:
    """Concatenate the tokens of all groups of chips. `array` [B, S, W] has the tokens of this chip's group."""
    if group == sp:
        return array
    across = [list(range(offset, sp, group)) for offset in range(group)]
    return jax.lax.all_gather(array, "sp", axis=1, tiled=True, axis_index_groups=across)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class KeyRing:
    """A ring buffer of the keys and values of a video's last frames in every layer, each [layers, chips, tokens, W].

    The axis `chips` has one entry for each chip on sp, and W is the number of channels of the heads whose attention it computes.
    `largest` [layers, chips, 2, heads] float32 are the largest Euclidean norm of each head's keys so far, and the largest
    magnitude of its values. None if the TPU's attention kernel is not used.
    """

    key: jax.Array
    value: jax.Array
    largest: jax.Array | None


RING = partition(None, "tokens", None, "heads")  # partition of each array of a `KeyRing`


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class RingPlace:
    """The position of a video block's tokens in a `KeyRing`. `layer` is the index of the layer. `starts` [F] are the positions of
    the first tokens of the block's F frames. `count` is the number of tokens in the ring after the block is written.
    """

    layer: jax.Array
    starts: jax.Array
    count: jax.Array


def ring_attention(
    layout: Layout,
    attend: Callable,
    projected: Projected,
    norms: Pair,
    tables: Pair,
    eps: float,
    num_tokens: int,
    ring: KeyRing,
    place: RingPlace,
) -> tuple[jax.Array, KeyRing]:
    """Compute the attention of a video block's tokens to the block itself and to the tokens in the ring. Also return the new
    ring.

    The first `num_tokens` tokens of the block are real, the others are padding. `attend(query, keys, values, place, bounds)` gets
    the keys and values of all layers, [layers, B, S_kv, W], and must use the first `place.count` keys of the layer `place.layer`.
    The other arguments are described in `self_attention`.
    """
    use_pallas = layout.uses_tpu_passes(projected[0].dtype)

    def local(projected, norms, tables, ring: KeyRing, place: RingPlace) -> tuple[jax.Array, KeyRing]:
        # The mean key is not subtracted, because the ring contains keys of several video blocks, each with another mean key.
        own = prepare_own_heads(projected, norms, tables, layout=layout, eps=eps, use_pallas=use_pallas, centres_keys=False)
        frame, nothing = num_tokens // len(place.starts), jnp.int32(0)

        def written(kept: jax.Array, array: jax.Array) -> jax.Array:
            for index in range(len(place.starts)):
                part = array[None, :, index * frame : (index + 1) * frame].astype(kept.dtype)
                kept = jax.lax.dynamic_update_slice(kept, part, (place.layer, nothing, place.starts[index], nothing))
            return kept

        bounds, largest = own.bounds, ring.largest
        if bounds is not None:
            assert largest is not None, "the passes that give bounds keep them"
            here = jnp.maximum(select_layer(largest, place.layer), jnp.stack([bounds.key, bounds.value], axis=1))
            largest = jax.lax.dynamic_update_slice(largest, here[None], (place.layer, nothing, nothing, nothing))
            bounds = HeadBounds(query=bounds.query, key=here[:, 0], value=here[:, 1])
        ring = KeyRing(key=written(ring.key, own.key), value=written(ring.value, own.value), largest=largest)
        attended = attend(own.query, ring.key, ring.value, place, bounds)
        return exchange_for_tokens(attended, own.group, layout.size("sp"), use_pallas=use_pallas), ring

    flat, norm, table = partition("branches", "tokens", "heads"), partition("heads"), partition("tokens", None)
    specs = ((flat,) * 3, (norm,) * 2, (table,) * 2, RING, P())
    return layout.on_each_chip(local, specs, (flat, RING))(projected, norms, tables, ring, place)


def exchange_for_heads(grouped: jax.Array, group: int, sp: int) -> jax.Array:
    """Exchange tokens for heads between the chips of a group.

    `grouped` has this chip's tokens, with one part of the heads for each chip. The result has this chip's heads for all tokens of
    the group, [B, group * S, W / group].
    """
    exchanged = _exchange_parts(grouped, group, sp)
    return jnp.moveaxis(exchanged, 0, 1).reshape(grouped.shape[1], -1, grouped.shape[3])


def exchange_for_tokens(attended: jax.Array, group: int, sp: int, use_pallas: bool) -> jax.Array:
    """Exchange heads for tokens, from this chip's heads [B, group * S, W / group] to this chip's tokens [B, S, W]."""
    batch, _, width = attended.shape
    exchanged = _exchange_parts(jnp.moveaxis(attended.reshape(batch, group, -1, width), 1, 0), group, sp)
    return ungroup_heads(exchanged, use_pallas=use_pallas)


def _exchange_parts(parts: jax.Array, group: int, sp: int) -> jax.Array:
    """Send `parts[i]` to chip i of the group. Return the parts that this chip receives, one from each chip."""
    if group == 1:
        return parts
    within = [list(range(start, start + group)) for start in range(0, sp, group)]
    with jax.named_scope("collectives"):
        return jax.lax.all_to_all(parts, "sp", split_axis=0, concat_axis=0, tiled=True, axis_index_groups=within)


def cross_attention(
    layout: Layout, attend: Callable, query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array | None
) -> jax.Array:
    """Compute cross-attention: each chip calls `attend(query, key, value, bias)` for its own tokens and the whole text.

    `query` is partitioned as `HEADS`, `key` and `value` as `TEXT_HEADS`. `bias` is [B, 1, 1, L] or None.
    """
    specs = (HEADS, TEXT_HEADS, TEXT_HEADS, None if bias is None else partition("branches"))
    return layout.on_each_chip(attend, specs, HEADS)(query, key, value, bias)
