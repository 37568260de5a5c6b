"""Wan's transformer over one block of latent frames at a time, which sees the blocks before it through their keys and values.

The keys and values of the last frames lie in a ring of fixed size: a new frame takes the place of the oldest, but for the first
few, the sink, which stay. So one program serves every block of a video of any length, and neither memory nor time grow.

Positions. A frame's rotary angle is that of its number in the video, computed in float64, so no table ends. Attention feels only
distances between frames, and within the ring none is longer than in training; the sink's would grow without end. So when the
newest frame lies further from the sink than any in training did, the sink's keys are turned on, and stay at that distance.

Source: guandeh17/Self-Forcing (algorithm, ring), NVlabs/LongLive (sink).
"""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from diffusers import WanTransformer3DModel

from backend.models.causal_wan.attention import RingAttention
from backend.models.wan.transformer import BLOCKS, Context, Denoiser
from backend.runtime.mesh import Layout, as_leaf, placed
from backend.runtime.ulysses import RING, KeyRing, RingPlace, describe_ring
from backend.runtime.work import Work
from backend.weights.stacked import StackedWeights

THETA = 10_000.0  # of the rotary embedding; source: diffusers, WanRotaryPosEmbed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Window:
    """How far a block sees, in latent frames: its own and those before it are `frames` together, of which the video's first
    `sink` always stay. In training no two frames were further apart than `trained`."""

    frames: int
    sink: int = 0
    trained: int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Past:
    """What a block sees of those before it: their keys and values, how many latent `frames` there were, and the `sink`'s keys as
    they were first, [layers, chips, tokens, W], None without a sink."""

    ring: KeyRing
    frames: jax.Array
    sink: jax.Array | None


class BlockDenoiser(Denoiser):
    """Shapes and modules of one causal transformer; weights are passed to every call. Methods are pure, to be compiled."""

    def __init__(self, config: Mapping[str, Any], layout: Layout, window: Window) -> None:
        own = inspect.signature(WanTransformer3DModel.__init__).parameters  # the rest says how the model was trained
        super().__init__({name: value for name, value in config.items() if name in own}, layout)
        self._window, self._attention = window, RingAttention(layout)
        self._block.attn1.set_processor(self._attention)

    @property
    def window(self) -> Window:
        return self._window

    def frame_tokens(self, latent_shape: tuple[int, ...]) -> int:
        """Tokens of one latent frame of latents B C F H W."""
        return self.num_tokens((*latent_shape[:2], 1, *latent_shape[3:]))

    def describe_past(self, latent_shape: tuple[int, ...], dtype: jnp.dtype) -> Past:
        """Shapes and places of the past of a video with latents of this shape, B C F H W, before its first block."""
        tokens, layers = self.frame_tokens(latent_shape), self._model.config.num_layers
        width = self.heads * self.head_width
        ring = describe_ring(self._layout, layers, self._window.frames * tokens, width, self.heads, dtype)
        sink = None
        if self._window.sink:
            shape = (*ring.key.shape[:2], self._window.sink * tokens, ring.key.shape[3])
            sink = as_leaf(jax.ShapeDtypeStruct(shape, dtype, sharding=ring.key.sharding))
        return Past(ring=ring, frames=self._layout.whole(jax.ShapeDtypeStruct((), jnp.int32)), sink=sink)

    def past_sharding(self, shapes: Past) -> Past:
        """Where a past lies that a program returns."""
        ring, sink = placed((shapes.ring, shapes.sink), self._layout.sharding(RING))
        return Past(ring=ring, frames=self._layout.whole(shapes.frames), sink=sink)

    def block_positions(self, latent_shape: tuple[int, ...], first: int) -> Work:
        """Work: the rotary embedding of a block's latents B C F H W that begin with the video's latent frame `first`."""
        positions = yield from self.positions(latent_shape, self._frame_angles(np.arange(first, first + latent_shape[2])))
        return positions

    def sink_rotation(self, first: int, frames: int) -> tuple[np.ndarray, np.ndarray]:
        """Cosine and sine [D] by which the sink is turned for a block of so many latent `frames` beginning with frame `first`."""
        cosine, sine = np.ones(self.head_width), np.zeros(self.head_width)
        turned = self._frame_angles(np.array([max(0, first + frames - self._window.trained)]))[0]
        cosine[: len(turned)], sine[: len(turned)] = np.cos(turned), np.sin(turned)
        return cosine.astype(np.float32), sine.astype(np.float32)

    def _frame_angles(self, frames: np.ndarray) -> np.ndarray:
        """Angles [frames, channels of a head that stand for time] of latent frames by number, each value twice, in float64."""
        width = self._rope.t_dim
        rates = THETA ** (-np.arange(0, width, 2, dtype=np.float64) / width)
        return np.repeat(np.outer(frames, rates), 2, axis=1)

    def block_velocity(
        self, weights: StackedWeights, latents: jax.Array, timestep: jax.Array, context: Context, past: Past
    ) -> tuple[jax.Array, KeyRing]:
        """Velocity (noise - data) [1, C, F, H, W] float32 of a block's `latents`, and the ring with the block's keys and values:
        those of these latents, to be overwritten by the next step, at last by those of the clean latents."""
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
        """Where in the ring each frame of a block begins that comes after `frames` others, and how many tokens then count."""
        window, tokens = self._window, self.frame_tokens(latent_shape)
        numbers = frames + jnp.arange(latent_shape[2])
        rolling = window.sink + (numbers - window.sink) % (window.frames - window.sink)
        places = jnp.where(numbers < window.sink, numbers, rolling)
        return places * tokens, jnp.minimum(frames + latent_shape[2], window.frames) * tokens

    def settled(
        self, weights: StackedWeights, clean: jax.Array, context: Context, past: Past, rotation: tuple[jax.Array, jax.Array]
    ) -> Past:
        """The past after a block with these `clean` latents. `rotation` turns the sink for the block that follows."""
        _, ring = self.block_velocity(weights, clean, jnp.float32(0), context, past)
        sink = past.sink
        if sink is not None:
            tokens = sink.shape[2]
            sink = jnp.where(past.frames < self._window.sink, ring.key[:, :, :tokens], sink)
            ring = dataclasses.replace(ring, key=ring.key.at[:, :, :tokens].set(_rotate_keys(sink, *rotation)))
        return Past(ring=ring, frames=past.frames + clean.shape[2], sink=sink)


def _rotate_keys(keys: jax.Array, cosine: jax.Array, sine: jax.Array) -> jax.Array:
    """Keys [..., W] of heads of D channels with each pair of neighbours (a, b) turned by an angle: cosine and sine are [D]."""
    heads = keys.astype(jnp.float32).reshape(*keys.shape[:-1], -1, len(cosine))
    pairs = heads.reshape(*heads.shape[:-1], -1, 2)
    across = jnp.stack([-pairs[..., 1], pairs[..., 0]], axis=-1).reshape(heads.shape)
    return (heads * cosine + across * sine).astype(keys.dtype).reshape(keys.shape)
