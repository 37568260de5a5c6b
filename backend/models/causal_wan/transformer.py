"""Wan's transformer over one block of latent frames at a time. A block sees the earlier blocks through their keys and values.

The keys and values of the latest latent frames are in a ring: an array of fixed size, in which a new frame replaces the oldest
frame. Only the video's first frames, called the sink, are never replaced. Therefore one program computes every block of a video
of any length.

A frame's rotary angles follow from its number in the video, and are computed in float64. If the distance to the sink becomes
longer than in training, the sink's keys are rotated. Then attention sees the longest distance in training.

Source: guandeh17/Self-Forcing (algorithm, ring), NVlabs/LongLive (sink).
"""

import dataclasses
import functools
import inspect
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from diffusers import WanTransformer3DModel

from backend.checkpoints.json_files import Config
from backend.models.common.flat_attention import FLAT_HEADS, rotary_angles
from backend.models.wan.attention import KernelAttention
from backend.models.wan.transformer import BLOCKS, Context, Denoiser
from backend.runtime.cpu_attention import attention
from backend.runtime.mesh import Layout, as_leaf, with_sharding
from backend.runtime.ulysses import RING, KeyRing, RingPlace, ring_attention
from backend.runtime.work import Work
from backend.weights.stacked import StackedWeights
from kernels.attention import AttentionOptions, KvLengths
from kernels.qkv import HeadBounds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Window:
    """The latent frames that a block sees: `frames` of them, including its own, of which the video's first `sink` always stay.

    `trained` is the longest window in training.
    """

    frames: int
    sink: int = 0
    trained: int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Past:
    """The keys and values of earlier blocks that a block sees.

    Attributes:
        frames: the number of latent frames before the block.
        sink: the keys of the video's first latent frames, before `BlockDenoiser.sink_rotation` rotates them, [layers, chips,
            tokens, channels of a chip]. None if the window has no sink.
    """

    ring: KeyRing
    frames: jax.Array
    sink: jax.Array | None


class RingAttention(KernelAttention):
    """An attention processor for `WanAttention` that writes keys and values into a ring, and attends to the keys in the ring.

    diffusers' module has no argument for a ring. Therefore the caller sets `ring` and `place` before each layer, and reads the
    updated `ring` after the layer.
    """

    ring: KeyRing
    place: RingPlace

    def _attend(self, num_tokens: int, head_width: int, *projected: Any) -> jax.Array:
        def attend(query, keys, values, place: RingPlace, bounds: HeadBounds | None) -> jax.Array:
            """Compute attention [B, S, W] to the first `place.count` keys [layers, B, S_kv, W] of the layer `place.layer`.

            `place.count` is at least `num_tokens`. If it is S_kv, a faster branch without a mask runs.
            """
            options = AttentionOptions(layer=place.layer, tpu=dataclasses.replace(FLAT_HEADS, bounds=bounds))
            heads = tuple(array.reshape(*array.shape[:-1], -1, head_width) for array in (query, keys, values))

            def attend_to_some(*heads: jax.Array) -> jax.Array:
                kv_lengths = KvLengths(values=place.count[None], minimum=num_tokens)
                return attention(*heads, options=dataclasses.replace(options, kv_lengths=kv_lengths))

            attend_to_all = functools.partial(attention, options=options)
            attended = jax.lax.cond(place.count == keys.shape[2], attend_to_all, attend_to_some, *heads)
            return attended.reshape(*attended.shape[:2], -1)

        attended, self.ring = ring_attention(self._layout, attend, *projected, num_tokens, self.ring, self.place)
        return attended


class BlockDenoiser(Denoiser):
    """Shapes and modules of a causal transformer. Methods take the weights as an argument, and are pure."""

    def __init__(self, config: Config, layout: Layout, window: Window) -> None:
        # Unknown entries, such as the entries about training, are left out, because diffusers' class rejects them.
        known = inspect.signature(WanTransformer3DModel.__init__).parameters
        super().__init__({name: value for name, value in config.items() if name in known}, layout)
        self.window, self._attention = window, RingAttention(layout)
        self._block.attn1.set_processor(self._attention)

    def frame_tokens(self, latent_shape: tuple[int, ...]) -> int:
        return self.num_tokens((*latent_shape[:2], 1, *latent_shape[3:]))

    def describe_past(self, latent_shape: tuple[int, ...], dtype: jnp.dtype) -> Past:
        tokens, layers = self.frame_tokens(latent_shape), self._model.config.num_layers
        sp, sharding = self._layout.size("sp"), self._layout.sharding(RING)
        group = math.gcd(self.heads // self._layout.size("tp"), sp)  # number of chips that exchange heads
        shape = (layers, sp, self.window.frames * tokens, self.heads * self.head_width // group)
        array = as_leaf(jax.ShapeDtypeStruct(shape, dtype, sharding=sharding))
        largest = sink = None
        if self._layout.uses_tpu_passes(dtype):
            own = (layers, sp, 2, self.heads // group)
            largest = as_leaf(jax.ShapeDtypeStruct(own, jnp.float32, sharding=sharding))
        ring = KeyRing(key=array, value=array, largest=largest)
        if self.window.sink:
            shape = (*ring.key.shape[:2], self.window.sink * tokens, ring.key.shape[3])
            sink = as_leaf(jax.ShapeDtypeStruct(shape, dtype, sharding=ring.key.sharding))
        return Past(ring=ring, frames=with_sharding(jax.ShapeDtypeStruct((), jnp.int32), self._layout.replicated), sink=sink)

    def past_sharding(self, shapes: Past) -> Past:
        ring, sink = with_sharding((shapes.ring, shapes.sink), self._layout.sharding(RING))
        return Past(ring=ring, frames=with_sharding(shapes.frames, self._layout.replicated), sink=sink)

    def block_positions(self, latent_shape: tuple[int, ...], first: int) -> Work:
        """Compute the rotary embedding of a block's latents [B, C, F, H, W] from latent frame `first` on. Yields work."""
        angles = rotary_angles(np.arange(first, first + latent_shape[2]), self._rope.t_dim)
        return (yield from self.positions(latent_shape, angles))

    def sink_rotation(self, first: int, frames: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the cosine and sine [D] that rotate the sink's keys for a block of `frames` latent frames from `first` on."""
        cosine, sine = np.ones(self.head_width), np.zeros(self.head_width)
        angles = rotary_angles(np.array([max(0, first + frames - self.window.trained)]), self._rope.t_dim)[0]
        cosine[: len(angles)], sine[: len(angles)] = np.cos(angles), np.sin(angles)
        return cosine.astype(np.float32), sine.astype(np.float32)

    def block_velocity(
        self, weights: StackedWeights, latents: jax.Array, timestep: jax.Array, context: Context, past: Past
    ) -> tuple[jax.Array, KeyRing]:
        """Predict the velocity (noise - data) [1, C, F, H, W] float32 of a block's `latents`.

        Returns the velocity, and the ring with the keys and values of these latents. Later steps of the block and the commit of
        the clean block overwrite these keys and values.
        """
        (hidden,), time = self._begin(weights, latents, timestep, context)
        text, positions = context.text, context.positions
        starts, count = self._ring_places(past.frames, latents.shape)

        def one_layer(carry, layer):
            (hidden, self._attention.ring), (index, *rest) = carry, layer
            self._attention.place = RingPlace(layer=index, starts=starts, count=count)
            hidden = self._run_layer(hidden, tuple(rest), time, text.bias, positions)
            return (hidden, self._attention.ring), None

        layers = (jnp.arange(self._model.config.num_layers), weights.stacks[BLOCKS], text.key, text.value, text.image)
        (hidden, ring), _ = jax.lax.scan(one_layer, (hidden, past.ring), layers)
        return self._finish(weights, hidden, time, positions, latents.shape), ring

    def _ring_places(self, frames: jax.Array, latent_shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
        """Return the indices in the ring at which the tokens of each frame of a block start, for `frames` earlier latent frames.

        Also return the number of tokens in the ring after the block is written.
        """
        window, tokens = self.window, self.frame_tokens(latent_shape)
        numbers = frames + jnp.arange(latent_shape[2])
        rolling = window.sink + (numbers - window.sink) % (window.frames - window.sink)
        places = jnp.where(numbers < window.sink, numbers, rolling)
        return places * tokens, jnp.minimum(frames + latent_shape[2], window.frames) * tokens

    def commit_chunk(
        self, weights: StackedWeights, clean: jax.Array, context: Context, past: Past, rotation: tuple[jax.Array, jax.Array]
    ) -> Past:
        """Add a block with the `clean` latents to the past. `rotation` rotates the sink's keys for the next block."""
        _, ring = self.block_velocity(weights, clean, jnp.float32(0), context, past)
        sink = past.sink
        if sink is not None:
            tokens = sink.shape[2]
            sink = jnp.where(past.frames < self.window.sink, ring.key[:, :, :tokens], sink)
            # rotate each pair of neighbouring channels of the keys [..., heads * D]
            cosine, sine = rotation
            heads = sink.astype(jnp.float32).reshape(*sink.shape[:-1], -1, len(cosine))
            pairs = heads.reshape(*heads.shape[:-1], -1, 2)
            across = jnp.stack([-pairs[..., 1], pairs[..., 0]], axis=-1).reshape(heads.shape)
            rotated = (heads * cosine + across * sine).astype(sink.dtype).reshape(sink.shape)
            ring = dataclasses.replace(ring, key=ring.key.at[:, :, :tokens].set(rotated))
        return Past(ring=ring, frames=past.frames + clean.shape[2], sink=sink)
