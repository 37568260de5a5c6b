"""Attention of a video's tokens to the video itself and to a driving video, spread over chips.

Each latent frame of the video sees the whole video and one frame of the driving video, its driving frame. Two attentions compute
this without a mask, and `kernels.attention.join_attentions` joins them by their log-sum-exps. The driving video's keys and values
are computed once per video.
"""

import dataclasses
import math
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from backend.runtime.mesh import Layout, as_leaf, partition, with_sharding
from backend.runtime.ulysses import Pair, Projected, exchange_for_tokens, prepare_own_heads
from kernels.attention import join_attentions
from kernels.qkv import HeadBounds

KEYS_PARTITION = partition(None, "tokens", None, None, "heads")  # partition of `ClipKeys.key` and `ClipKeys.value`
BOUNDS_PARTITION = partition(None, "tokens", None, "heads")
NUM_LEADING_FRAMES = 1  # the first latent frame is the image, which has no driving frame
AttendWithSums = Callable[..., tuple[jax.Array, jax.Array]]
"""Attention with log-sum-exps.

(query, keys, values, bounds, layer) -> attended [B, S, W] and log-sum-exps [B, S, H]. Keys and values are [B, S_kv, W], or the
arrays of all layers if `layer` is given.
"""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ClipKeys:
    """Keys and values of a driving video's tokens in every layer, each [layers, chips, F, T, W]: F latent frames of T tokens.

    The keys include their rotary embedding. The axis `chips` has one entry for each chip on sp, and W is the number of channels
    of the heads whose attention the chip computes. The `ClipKeys` of a single layer have arrays without the axis `layers`.

    `largest` [layers, chips, 2, heads] float32 are the largest Euclidean norm of each head's keys and the largest magnitude of
    its values. None if `Layout.uses_tpu_passes` is false.
    """

    key: jax.Array
    value: jax.Array
    largest: jax.Array | None


def describe_clip_keys(layout: Layout, shapes: ClipKeys) -> ClipKeys:
    return ClipKeys(
        key=with_sharding(shapes.key, layout.sharding(KEYS_PARTITION)),
        value=with_sharding(shapes.value, layout.sharding(KEYS_PARTITION)),
        largest=with_sharding(shapes.largest, layout.sharding(BOUNDS_PARTITION)),
    )


def clip_attention(
    layout: Layout,
    attend: Callable,
    projected: Projected,
    norms: Pair,
    tables: Pair,
    eps: float,
    num_frames: int,
    num_tokens: int,
) -> tuple[jax.Array, ClipKeys]:
    """Compute the self-attention of a driving video's tokens, as `ulysses.self_attention` does. Also return the keys and values.

    The first `num_tokens` tokens are real, the others are padding. All samples of the batch have the same driving video, so the
    `ClipKeys` are of one sample.
    """
    use_pallas = layout.uses_tpu_passes(projected[0].dtype)

    def local(projected, norms, tables) -> tuple[jax.Array, ClipKeys]:
        own = prepare_own_heads(projected, norms, tables, layout=layout, eps=eps, use_pallas=use_pallas, centres_keys=False)
        attended = attend(own.query, own.key, own.value, own.bounds)
        attended = exchange_for_tokens(attended, own.group, layout.size("sp"), use_pallas=use_pallas)
        largest = None if own.bounds is None else jnp.stack([own.bounds.key[:1], own.bounds.value[:1]], axis=1)
        by_frames = 1, num_frames, num_tokens // num_frames, -1
        key, value = (array[:1, :num_tokens].reshape(by_frames) for array in (own.key, own.value))
        return attended, ClipKeys(key=key, value=value, largest=largest)

    flat, norm, table = partition("branches", "tokens", "heads"), partition("heads"), partition("tokens", None)
    largest = as_leaf(P(*BOUNDS_PARTITION[1:])) if use_pallas else None
    kept = ClipKeys(key=as_leaf(P(*KEYS_PARTITION[1:])), value=as_leaf(P(*KEYS_PARTITION[1:])), largest=largest)
    return layout.on_each_chip(local, ((flat,) * 3, (norm,) * 2, (table,) * 2), (flat, kept))(projected, norms, tables)


def driven_attention(
    layout: Layout,
    attend: AttendWithSums,
    projected: Projected,
    norms: Pair,
    tables: Pair,
    eps: float,
    keys: ClipKeys,
    layer: jax.Array,
) -> jax.Array:
    """Compute the attention of a video's tokens to the video itself and to the driving video, [B, S, W].

    `keys` are the driving video's keys and values in all layers, and `layer` is the index of the current layer. The other
    arguments are described in `ulysses.self_attention`. Latent frame f sees frame f - 1 of the driving video, latent frame 0
    none.
    """
    use_pallas, sp = layout.uses_tpu_passes(projected[0].dtype), layout.size("sp")

    def local(projected, norms, tables, keys: ClipKeys, layer: jax.Array) -> jax.Array:
        # The mean keys are not subtracted. They differ for the video and the driving video, so subtracting them would change the
        # log-sum-exps of the two attentions by different amounts, and the results could not be joined.
        own = prepare_own_heads(projected, norms, tables, layout=layout, eps=eps, use_pallas=use_pallas, centres_keys=False)
        whole = attend(own.query, own.key, own.value, own.bounds, None)
        groups = sp // own.group
        first = 0 if groups == 1 else jax.lax.axis_index("sp") // own.group * own.query.shape[1]
        to_clip = []
        for row in (slice(row, row + 1) for row in range(len(own.query))):
            query, bounds = own.query[row], jax.tree.map(operator.itemgetter(row), own.bounds)
            to_clip.append(_attend_to_clip(query, bounds, keys, layer, attend, first))
        heads, of_clip = whole[1].shape[2], tuple(map(jnp.concatenate, zip(*to_clip, strict=True)))
        parts = [(attended.reshape(*attended.shape[:2], heads, -1), sums) for attended, sums in (whole, of_clip)]
        before = NUM_LEADING_FRAMES * keys.key.shape[3] if groups == 1 else 0
        attended = join_attentions(*parts, before=before, use_pallas=use_pallas).reshape(whole[0].shape)
        return exchange_for_tokens(attended, own.group, sp, use_pallas=use_pallas)

    flat, norm, table = partition("branches", "tokens", "heads"), partition("heads"), partition("tokens", None)
    largest = None if keys.largest is None else as_leaf(BOUNDS_PARTITION)
    kept = ClipKeys(key=as_leaf(KEYS_PARTITION), value=as_leaf(KEYS_PARTITION), largest=largest)
    specs = ((flat,) * 3, (norm,) * 2, (table,) * 2, kept, P())
    return layout.on_each_chip(local, specs, flat)(projected, norms, tables, keys, layer)


def _attend_to_clip(
    query: jax.Array, bounds: HeadBounds | None, keys: ClipKeys, layer: jax.Array, attend: AttendWithSums, first: jax.Array | int
) -> tuple[jax.Array, jax.Array]:
    """Attend from queries [1, S, W] to the driving video. Returns the attention and the log-sum-exps [1, S, H] of H heads.

    `first` is the index of the first query's token in the video. Latent frame 0 and padding see no driving frame. If `first` is a
    traced array, their log-sum-exps are -inf. An int means that the queries are all tokens, and the results exclude these tokens.
    """
    _, _, frames, tokens, _ = keys.key.shape
    length, width = query.shape[1:]
    if isinstance(first, int):  # the queries are all tokens of the video, frame after frame
        own = query[0, NUM_LEADING_FRAMES * tokens : (NUM_LEADING_FRAMES + frames) * tokens].reshape(frames, tokens, width)
        return _attend_by_frames(own, bounds, keys.key[:, 0], keys.value[:, 0], keys.largest, layer, attend)
    count, start, offset = -(-length // tokens) + 1, first // tokens, first % tokens
    room = jnp.zeros((1, count * tokens, width), query.dtype)
    own = jax.lax.dynamic_update_slice(room, query, (0, offset, 0)).reshape(count, tokens, width)
    places = jnp.clip(start - NUM_LEADING_FRAMES + jnp.arange(count), 0, frames - 1)
    key, value = (jax.lax.dynamic_index_in_dim(array, layer, keepdims=False)[0, places] for array in (keys.key, keys.value))
    largest = None if keys.largest is None else jax.lax.dynamic_index_in_dim(keys.largest, layer)
    made = _attend_by_frames(own, bounds, key[None], value[None], largest, jnp.int32(0), attend)
    attended, sums = (jax.lax.dynamic_slice_in_dim(array, offset, length, axis=1) for array in made)
    frame = (first + jnp.arange(length)) // tokens - NUM_LEADING_FRAMES
    sees = ((frame >= 0) & (frame < frames))[None, :, None]
    return attended, jnp.where(sees, sums, -jnp.inf)


def _attend_by_frames(
    query: jax.Array,
    bounds: HeadBounds | None,
    key: jax.Array,
    value: jax.Array,
    largest: jax.Array | None,
    layer: jax.Array,
    attend: AttendWithSums,
) -> tuple[jax.Array, jax.Array]:
    """Attend from queries [F, T, W] of F frames to the keys and values [layers, F, T, W] of the same frames, in one layer.

    Returns the attention [1, F * T, W] and the log-sum-exps [1, F * T, H].
    """
    if bounds is not None:
        here = jax.lax.dynamic_index_in_dim(largest, layer, keepdims=False)[0]
        shape = len(query), here.shape[1]
        query_norms, key_norms = jnp.broadcast_to(bounds.query[0], shape), jnp.broadcast_to(here[0], shape)
        bounds = HeadBounds(query=query_norms, key=key_norms, value=jnp.broadcast_to(here[1], shape))
    attended, sums = attend(query, key, value, bounds, layer)
    attended, sums = (array.reshape(1, math.prod(array.shape[:2]), array.shape[2]) for array in (attended, sums))
    return attended, sums
