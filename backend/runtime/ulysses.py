"""Attention over a sequence that is spread over chips: tokens are exchanged for heads and back.

Source: DeepSpeed-Ulysses, arXiv:2309.14509. If the heads do not divide by the chips, smaller groups of chips exchange heads and
gather keys and values from the other groups.

In shapes [B, S, W], W is the number of channels of all heads in the array. On a TPU, Pallas passes prepare the arrays for the
attention kernel. They also compute bounds (`HeadBounds`): the largest norms of each head's queries and keys, and its largest
value.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from backend.runtime.mesh import HEADS, TEXT_HEADS, Layout, as_leaf, partition
from kernels.attention import add_gated_tiles, select_layer
from kernels.qkv import HeadBounds, Preparation, prepare, ungroup_heads


def self_attention(
    layout: Layout,
    attend: Callable,
    projected: tuple[jax.Array, jax.Array, jax.Array],
    norms: tuple[jax.Array, jax.Array],
    tables: tuple[jax.Array, jax.Array],
    eps: float,
    head_width: int | None = None,
) -> jax.Array:
    """Compute attention [B, S, W] over the whole sequence of the projected query, key and value, each [B, S, W].

    Every chip prepares its own tokens, then exchanges tokens for heads. After the exchange, each chip has some of the heads. It
    has the keys and values of all tokens, and the queries of the tokens of its group of chips (see `OwnHeads`). If all chips form
    one group, the chip has the queries of all tokens.

    The chip then calls `attend(query, key, value, bounds)`. The first three arrays are [B, tokens, channels of the chip's heads].
    `bounds` are the `HeadBounds` of the chip's heads, None if no Pallas pass prepared the arrays. The result of `attend` is
    exchanged back.

    `norms` are the weights [W] of the RMS norms of query and key. `tables` are cosine and sine of the rotary embedding, [S, D]
    with D channels of a head. With a `head_width` they are [S, W / 2] (see `Preparation`).
    """
    local = functools.partial(_local_attention, layout=layout, attend=attend, eps=eps, head_width=head_width)
    flat, norm = partition("branches", "tokens", "heads"), partition("heads")
    table = partition("tokens", None if head_width is None else "heads")
    return layout.on_each_chip(local, ((flat,) * 3, (norm,) * 2, (table,) * 2), flat)(projected, norms, tables)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnHeads:
    """The heads whose attention one chip computes, [B, S, W]: keys and values of all tokens, queries of some or all tokens.

    The queries are the queries of the tokens of the chip's group, which is the set of chips that exchange heads. `group` is the
    number of chips in the group. `mean` [B, 1, W] was subtracted from the keys, None if nothing was subtracted.
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
    """Prepare this chip's tokens and exchange them for heads. With `needs_mean`, the result has the `mean` of the keys.

    Each group of chips exchanges heads. A group has as many chips as the greatest common divisor of the heads and sp. The queries
    are divided between the groups. Every group gathers the keys and values of all groups.
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


def _local_attention(
    projected, norms, tables, *, layout: Layout, attend: Callable, eps: float, head_width: int | None
) -> jax.Array:
    """Compute one chip's part of `self_attention`."""
    use_pallas = layout.uses_tpu_passes(projected[0].dtype)
    own = prepare_own_heads(projected, norms, tables, layout=layout, eps=eps, use_pallas=use_pallas, head_width=head_width)
    attended = attend(own.query, own.key, own.value, own.bounds)
    return exchange_for_tokens(attended, own.group, layout.size("sp"), use_pallas=use_pallas)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseHeadsResult:
    """The sparse attention of one chip's heads.

    Attributes:
        attended: the attention of tokens, [B, tokens, W].
        tiles: the attention between tiles of tokens, [B, tiles, W], for methods that multiply it by a gate.
        counts: the number of exact blocks, and the number of blocks without space in their list, [2] float32. None for methods
            without counts.
    """

    attended: jax.Array
    tiles: jax.Array | None = None
    counts: jax.Array | None = None


def sparse_self_attention(
    layout: Layout,
    attend: Callable[..., SparseHeadsResult],
    projected: tuple[jax.Array, jax.Array, jax.Array],
    norms: tuple[jax.Array, jax.Array],
    tables: tuple[jax.Array, jax.Array],
    eps: float,
    shared: tuple[jax.Array, ...],
    gate: jax.Array | None = None,
    has_counts: bool = False,
) -> tuple[jax.Array, jax.Array | None]:
    """Compute `self_attention` in which `attend` selects the keys. With `has_counts`, also return the sum of the chips' `counts`.

    `attend(own, first_query, *shared)` gets the chip's heads (`OwnHeads`) and the index of its first query's token. The arrays
    `shared` are replicated.

    With `gate` [B, S, W], the attention between tiles is multiplied by the gate and added to the attention of tokens. Chips do
    this after they have exchanged heads back for tokens, so that they need not exchange the gate. The tokens of a chip must be
    whole tiles.
    """
    local = functools.partial(_local_sparse_attention, layout=layout, attend=attend, eps=eps)
    flat, norm, table = partition("branches", "tokens", "heads"), partition("heads"), partition("tokens", None)
    specs = ((flat,) * 3, (norm,) * 2, (table,) * 2, (P(),) * len(shared), None if gate is None else flat)
    every_chip = P(tuple(layout.mesh.axis_names)) if has_counts else None
    attended, counts = layout.on_each_chip(local, specs, (flat, every_chip))(projected, norms, tables, shared, gate)
    return attended, None if counts is None else counts.sum(0)


def _local_sparse_attention(
    projected,
    norms,
    tables,
    shared: tuple[jax.Array, ...],
    gate: jax.Array | None,
    *,
    layout: Layout,
    attend: Callable[..., SparseHeadsResult],
    eps: float,
) -> tuple[jax.Array, jax.Array | None]:
    """Compute one chip's part of `sparse_self_attention`, and its counts [1, 2] if the method has counts."""
    use_pallas, sp = layout.uses_tpu_passes(projected[0].dtype), layout.size("sp")
    own = prepare_own_heads(projected, norms, tables, layout=layout, eps=eps, use_pallas=use_pallas, needs_mean=True)
    first_query = 0 if own.group == sp else jax.lax.axis_index("sp") // own.group * own.query.shape[1]
    result = attend(own, first_query, *shared)
    attended = exchange_for_tokens(result.attended, own.group, sp, use_pallas=use_pallas)
    if gate is not None:
        assert result.tiles is not None, "a method with a gate returns the attention of tiles"
        attended = add_gated_tiles(attended, exchange_for_tokens(result.tiles, own.group, sp, use_pallas=False), gate)
    return attended, None if result.counts is None else result.counts[None]


def gather_groups(array: jax.Array, group: int, sp: int) -> jax.Array:
    """Gather the tokens [B, S, W] of all groups of chips, for the heads of this chip."""
    if group == sp:
        return array
    across = [list(range(offset, sp, group)) for offset in range(group)]
    return jax.lax.all_gather(array, "sp", axis=1, tiled=True, axis_index_groups=across)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class KeyRing:
    """A ring buffer of the keys and values of a video's last frames in every layer, each [layers, chips, tokens, W].

    Each chip on sp stores the heads whose attention it computes. W is the number of channels of these heads.

    `largest` [layers, chips, 2, heads] float32 contains the largest Euclidean norm of each head's keys so far, and the largest
    magnitude of its values. The TPU's attention kernel needs `largest`. Without this kernel, `largest` has the value None.
    """

    key: jax.Array
    value: jax.Array
    largest: jax.Array | None


RING = partition(None, "tokens", None, "heads")  # partition of a `KeyRing`


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class RingPlace:
    """The position of a block's tokens in a `KeyRing`.

    `layer` is the index of the layer. `starts` [F] are the positions in the ring at which the block's F frames start. `count` is
    the number of tokens that the ring contains after the block is written.
    """

    layer: jax.Array
    starts: jax.Array
    count: jax.Array


def describe_ring(layout: Layout, num_layers: int, num_tokens: int, width: int, heads: int, dtype: jnp.dtype) -> KeyRing:
    """Return the shapes and shardings of a ring for `num_tokens` tokens of a transformer with `width` channels."""
    sp, tp = layout.size("sp"), layout.size("tp")
    shape = (num_layers, sp, num_tokens, width // math.gcd(heads // tp, sp))
    array = as_leaf(jax.ShapeDtypeStruct(shape, dtype, sharding=layout.sharding(RING)))
    largest = None
    if layout.uses_tpu_passes(dtype):
        own = (num_layers, sp, 2, heads // math.gcd(heads // tp, sp))
        largest = as_leaf(jax.ShapeDtypeStruct(own, jnp.float32, sharding=layout.sharding(RING)))
    return KeyRing(key=array, value=array, largest=largest)


def ring_attention(
    layout: Layout,
    attend: Callable,
    projected: tuple[jax.Array, jax.Array, jax.Array],
    norms: tuple[jax.Array, jax.Array],
    tables: tuple[jax.Array, jax.Array],
    eps: float,
    num_tokens: int,
    ring: KeyRing,
    place: RingPlace,
) -> tuple[jax.Array, KeyRing]:
    """Compute `self_attention` of one block's tokens to themselves and to the tokens in the ring. Also return the updated ring.

    The first `num_tokens` tokens of the block are not padding. `attend(query, keys, values, place, bounds)` gets the keys and
    values of all layers, [layers, B, S_kv, W]. `place` contains the layer and the number of keys to which to attend; `bounds` are
    as in `self_attention`.
    """
    local = functools.partial(_local_ring_attention, layout=layout, attend=attend, eps=eps, num_tokens=num_tokens)
    flat, norm, table = partition("branches", "tokens", "heads"), partition("heads"), partition("tokens", None)
    specs = ((flat,) * 3, (norm,) * 2, (table,) * 2, RING, P())
    return layout.on_each_chip(local, specs, (flat, RING))(projected, norms, tables, ring, place)


def _local_ring_attention(
    projected, norms, tables, ring: KeyRing, place: RingPlace, *, layout: Layout, attend: Callable, eps: float, num_tokens: int
) -> tuple[jax.Array, KeyRing]:
    """Compute one chip's part of `ring_attention`.

    Other attentions subtract the mean key from all keys, which lets the TPU kernel use its fast form. Here the mean key is not
    subtracted, because the ring contains keys of several blocks, and each block has a different mean.
    """
    use_pallas = layout.uses_tpu_passes(projected[0].dtype)
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


def exchange_for_heads(grouped: jax.Array, group: int, sp: int) -> jax.Array:
    """Exchange tokens for heads between the chips of a group.

    `grouped` [group, B, S, W / group] contains this chip's tokens, with the heads divided into `group` parts. The result contains
    this chip's heads of the tokens of its group, [B, group * S, W / group].
    """
    exchanged = _exchange_parts(grouped, group, sp)
    return jnp.moveaxis(exchanged, 0, 1).reshape(grouped.shape[1], -1, grouped.shape[3])


def exchange_for_tokens(attended: jax.Array, group: int, sp: int, use_pallas: bool) -> jax.Array:
    """Undo `exchange_for_heads`: [B, group * S, W / group] of this chip's heads to [B, S, W] of this chip's tokens."""
    batch, _, width = attended.shape
    exchanged = _exchange_parts(jnp.moveaxis(attended.reshape(batch, group, -1, width), 1, 0), group, sp)
    return ungroup_heads(exchanged, use_pallas=use_pallas)


def _exchange_parts(parts: jax.Array, group: int, sp: int) -> jax.Array:
    """Send the i-th part to the i-th chip of the group, and receive one part from each chip."""
    if group == 1:
        return parts
    within = [list(range(start, start + group)) for start in range(0, sp, group)]
    with jax.named_scope("collectives"):
        return jax.lax.all_to_all(parts, "sp", split_axis=0, concat_axis=0, tiled=True, axis_index_groups=within)


def cross_attention(
    layout: Layout, attend: Callable, query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array | None
) -> jax.Array:
    """Compute cross-attention: each chip calls `attend` from its own tokens to the whole text.

    `query` is partitioned as `HEADS`, `key` and `value` as `TEXT_HEADS`; `bias` is [B, 1, 1, L] or None.
    """
    specs = (HEADS, TEXT_HEADS, TEXT_HEADS, None if bias is None else partition("branches"))
    return layout.on_each_chip(attend, specs, HEADS)(query, key, value, bias)
