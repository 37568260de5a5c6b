"""The action module of Matrix-Game 2.0, which adds keyboard and mouse input to a block's tokens. All functions are pure.

A latent frame sees the actions in some pixel frames before its last pixel frame. The module has two attentions:

- Mouse: the mouse's movements are appended to each token's channels. Then each token attends to the tokens at the same place in
  all latent frames of the attention window.
- Keyboard: the keyboard input of a latent frame becomes one attention key and one value. All tokens attend to the attention keys
  of all latent frames of the window.

Keys and values are in rings, with one entry for each latent frame in the window of the block's self-attention. Arrays have no
separate axis for heads, because a head has fewer channels than a TPU register has lanes. The checkpoint has weights for the norms
of queries and keys, but the authors' code does not use them.

Source: SkyworkAI/Matrix-Game, Matrix-Game-2/wan/modules/action_module.py; GameFactory, arXiv:2501.08325.
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import Precision

from backend.models.causal_wan.action_spec import ActionShape
from backend.runtime.mesh import as_leaf

NORM_EPS = 1e-6  # for the norms of queries and keys
LAYER_NORM_EPS = 1e-5  # for the mouse's layer norm
multiply = functools.partial(jnp.einsum, "...c,cn->...n", preferred_element_type=jnp.float32)
sum_heads = functools.partial(jnp.einsum, "...c,ch->...h", precision=Precision.HIGHEST)  # float32, with a `_head_matrix`
spread_over_heads = functools.partial(jnp.einsum, "...h,ch->...c", precision=Precision.HIGHEST)
Parameters = Mapping[str, jax.Array]
"""The weights of one layer's action module, named as in the checkpoint. Matrices are [in, out]."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionRing:
    """Attention keys and values of the attention window's W latent frames in every action module.

    The arrays of the mouse are [layers, W, tokens per frame, C], None without a mouse. The arrays of the keyboard are [layers, W,
    C].
    """

    mouse_key: jax.Array | None
    mouse_value: jax.Array | None
    keyboard_key: jax.Array
    keyboard_value: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Steering:
    """The actions that a block of F latent frames sees. Each latent frame sees the actions of R pixel frames.

    `keyboard` is [F, R, keys]. `mouse` is [F, R * 2], None without a mouse. `cosine` and `sine` are the rotary embedding of each
    latent frame's queries and keys, [F, a head's time channels].
    """

    keyboard: jax.Array
    mouse: jax.Array | None
    cosine: jax.Array
    sine: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionPlace:
    """The position of a block's keys and values in an `ActionRing`.

    `places` [F] are the indices in the ring of the block's F latent frames. `count` is the number of latent frames that the ring
    has after the block is written.
    """

    layer: jax.Array
    places: jax.Array
    count: jax.Array


def parameter_shapes(shape: ActionShape, channels: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights in one layer's action module. `channels` is the width of the transformer."""
    width, embedded = shape.width, shape.key_width
    shapes = {
        "keyboard_embed.0.weight": (shape.keys, embedded), "keyboard_embed.0.bias": (embedded,),
        "keyboard_embed.2.weight": (embedded, embedded), "keyboard_embed.2.bias": (embedded,),
        "mouse_attn_q.weight": (channels, width),
        "keyboard_attn_kv.weight": (embedded * shape.reach, 2 * width),
        "proj_keyboard.weight": (width, channels),
    }  # fmt: skip
    if not shape.mouse_width:
        return shapes
    return shapes | {
        "mouse_mlp.0.weight": (channels + shape.mouse_width * shape.reach, width), "mouse_mlp.0.bias": (width,),
        "mouse_mlp.2.weight": (width, width), "mouse_mlp.2.bias": (width,),
        "mouse_mlp.3.weight": (width,), "mouse_mlp.3.bias": (width,),
        "t_qkv.weight": (width, 3 * width),
        "proj_mouse.weight": (width, channels),
    }  # fmt: skip


def describe_action_ring(shape: ActionShape, window: int, frame_tokens: int, dtype: jnp.dtype) -> ActionRing:
    keyboard = as_leaf(jax.ShapeDtypeStruct((shape.layers, window, shape.width), dtype))
    mouse_shape = as_leaf(jax.ShapeDtypeStruct((shape.layers, window, frame_tokens, shape.width), dtype))
    mouse = mouse_shape if shape.mouse_width else None
    return ActionRing(mouse_key=mouse, mouse_value=mouse, keyboard_key=keyboard, keyboard_value=keyboard)


def action_windows(actions: np.ndarray, frames: int, stride: int, reach: int) -> np.ndarray:
    """Return the actions that each of a block's latent frames sees, [frames, reach, N] for N keys and mouse values.

    `actions` [reach + stride * (frames - 1), N] starts with the first action that the block sees. A latent frame has `stride`
    pixel frames.
    """
    return np.stack([actions[stride * frame : stride * frame + reach] for frame in range(frames)])


def apply_actions(
    shape: ActionShape, parameters: Parameters, hidden: jax.Array, steering: Steering, ring: ActionRing, place: ActionPlace
) -> tuple[jax.Array, ActionRing]:
    """Run the mouse attention and the keyboard attention on a block's tokens `hidden` [F * T, D].

    Returns the changed tokens, and the ring after the block's keys and values are written.
    """
    if steering.mouse is not None:
        hidden, ring = _apply_mouse(shape, parameters, hidden, steering, ring, place)
    frames, dtype = len(place.places), hidden.dtype
    embedded = multiply(steering.keyboard.astype(dtype), parameters["keyboard_embed.0.weight"])
    embedded = jax.nn.silu((embedded + parameters["keyboard_embed.0.bias"]).astype(dtype))
    embedded = multiply(embedded, parameters["keyboard_embed.2.weight"]) + parameters["keyboard_embed.2.bias"]
    key_embeddings = embedded.astype(dtype).reshape(frames, -1)
    key, value = jnp.split(multiply(key_embeddings, parameters["keyboard_attn_kv.weight"]).astype(dtype), 2, axis=-1)
    query = multiply(hidden, parameters["mouse_attn_q.weight"]).astype(dtype).reshape(frames, len(hidden) // frames, -1)
    query, key = (_norm_and_rotate(shape, array, steering) for array in (query, key))
    keys, ring_keys = _write_to_ring(ring.keyboard_key, key, place)
    values, ring_values = _write_to_ring(ring.keyboard_value, value, place)
    # All tokens attend to one key per frame of the window [W, C]. One matrix product computes the scores of all heads.
    head_matrix = _head_matrix(shape).astype(dtype)
    spread_keys, spread_values = (array.astype(dtype)[:, :, None] * head_matrix for array in (keys, values))
    scores = jnp.einsum("ftc,wch->fwth", query, spread_keys, preferred_element_type=jnp.float32)
    shares = _attention_weights(shape, scores, place.count).astype(dtype)
    attended = jnp.einsum("fwth,wch->ftc", shares, spread_values, preferred_element_type=jnp.float32)
    attended = attended.astype(dtype).reshape(len(hidden), -1)
    hidden = hidden + multiply(attended, parameters["proj_keyboard.weight"]).astype(dtype)
    return hidden, dataclasses.replace(ring, keyboard_key=ring_keys, keyboard_value=ring_values)


def _apply_mouse(shape, parameters: Parameters, hidden: jax.Array, steering: Steering, ring: ActionRing, place: ActionPlace):
    assert steering.mouse is not None and ring.mouse_key is not None and ring.mouse_value is not None, "the model reads a mouse"
    frames, tokens = len(place.places), len(hidden) // len(place.places)
    first = parameters["mouse_mlp.0.weight"]
    mouse_part = multiply(steering.mouse.astype(hidden.dtype), first[hidden.shape[1] :]) + parameters["mouse_mlp.0.bias"]
    joined = multiply(hidden, first[: hidden.shape[1]]).reshape(frames, tokens, -1) + mouse_part[:, None]
    inner = jax.nn.gelu(joined.astype(hidden.dtype), approximate=True)
    inner = multiply(inner, parameters["mouse_mlp.2.weight"]) + parameters["mouse_mlp.2.bias"]
    wide = inner.astype(hidden.dtype).astype(jnp.float32)  # for the layer norm
    centred = wide - wide.mean(axis=-1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + LAYER_NORM_EPS)
    weight, bias = parameters["mouse_mlp.3.weight"], parameters["mouse_mlp.3.bias"]
    normed = (centred * scale * weight.astype(jnp.float32) + bias.astype(jnp.float32)).astype(hidden.dtype)
    projected = multiply(normed, parameters["t_qkv.weight"]).astype(hidden.dtype)
    query, key, value = jnp.split(projected, 3, axis=-1)
    query, key = (_norm_and_rotate(shape, array, steering) for array in (query, key))
    keys, ring_keys = _write_to_ring(ring.mouse_key, key, place)
    values, ring_values = _write_to_ring(ring.mouse_value, value, place)
    # each token attends to the tokens at the same place in all W frames of the window [W, T, C]
    products = query[:, None].astype(jnp.float32) * keys[None].astype(jnp.float32)
    shares = _attention_weights(shape, sum_heads(products, _head_matrix(shape)), place.count)
    attended = (spread_over_heads(shares, _head_matrix(shape)) * values[None].astype(jnp.float32)).sum(axis=1).astype(query.dtype)
    attended = attended.reshape(len(hidden), -1)
    hidden = hidden + multiply(attended, parameters["proj_mouse.weight"]).astype(hidden.dtype)
    return hidden, dataclasses.replace(ring, mouse_key=ring_keys, mouse_value=ring_values)


def _head_matrix(shape: ActionShape) -> jax.Array:
    """Return a matrix [C, heads] float32 that is 1 where the channel belongs to the head, 0 elsewhere."""
    return jnp.repeat(jnp.eye(shape.heads, dtype=jnp.float32), shape.width // shape.heads, axis=0)


def _norm_and_rotate(shape: ActionShape, value: jax.Array, steering: Steering) -> jax.Array:
    """Normalise queries or keys [F, ..., C] to a root mean square of 1 in each head, then rotate them by their frame's angles."""
    wide, width = value.astype(jnp.float32), shape.width // shape.heads
    scale = jax.lax.rsqrt(sum_heads(wide * wide, _head_matrix(shape)) / width + NORM_EPS)
    normed = (wide * spread_over_heads(scale, _head_matrix(shape))).astype(value.dtype).astype(jnp.float32)
    num_unrotated = width - shape.time_width
    cosine = jnp.tile(jnp.pad(steering.cosine, ((0, 0), (0, num_unrotated)), constant_values=1.0), shape.heads)
    sine = jnp.tile(jnp.pad(steering.sine, ((0, 0), (0, num_unrotated))), shape.heads)
    is_even = jnp.arange(shape.width) % 2 == 0
    token_axes = [1] * (value.ndim - 2)  # all tokens of a frame are rotated by the same angles
    cosine, left, right = (
        table.reshape(len(table), *token_axes, -1)
        for table in (cosine, jnp.where(is_even, -sine, 0), jnp.where(is_even, 0, sine))
    )
    rotated = normed * cosine + jnp.roll(normed, -1, axis=-1) * left + jnp.roll(normed, 1, axis=-1) * right
    return rotated.astype(value.dtype)


def _write_to_ring(ring: jax.Array, array: jax.Array, place: ActionPlace) -> tuple[jax.Array, jax.Array]:
    """Write `array` [F, ...] into a ring [layers, W, ...].

    Returns the ring's entries of the layer `place.layer`, [W, ...], and the whole ring.
    """
    zeros = [jnp.int32(0)] * (array.ndim - 1)
    for frame in range(len(array)):
        part = array[None, frame : frame + 1].astype(ring.dtype)
        ring = jax.lax.dynamic_update_slice(ring, part, (place.layer, place.places[frame], *zeros))
    return jax.lax.dynamic_index_in_dim(ring, place.layer, keepdims=False), ring


def _attention_weights(shape: ActionShape, scores: jax.Array, count: jax.Array) -> jax.Array:
    """Compute the softmax of scores [F, W, ..., heads] over the first `count` of the window's W latent frames."""
    counts = (jnp.arange(scores.shape[1]) < count).reshape(-1, *[1] * (scores.ndim - 2))
    scaled = scores / np.sqrt(shape.width // shape.heads)
    return jax.nn.softmax(jnp.where(counts, scaled, -jnp.inf), axis=1)
