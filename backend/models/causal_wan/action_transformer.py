"""Matrix-Game 2.0's transformer over one block of latent frames: causal Wan with action modules in its first layers.

The action module runs between a layer's cross-attention and feed-forward network. diffusers' layer cannot call it there, so such
a layer runs in two parts.
"""

import dataclasses
import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from backend.checkpoints.json_files import Config
from backend.models.causal_wan.action_spec import ACTIONS, ActionShape
from backend.models.causal_wan.actions import (
    ActionPlace,
    ActionRing,
    Steering,
    action_windows,
    apply_actions,
    describe_action_ring,
    parameter_shapes,
)
from backend.models.causal_wan.transformer import BlockDenoiser, Past, Window
from backend.models.common.flat_attention import rotary_angles
from backend.models.common.modules import select_prefix
from backend.models.common.transformer import layer_at
from backend.models.wan.attention import TextKeys, text_keys
from backend.models.wan.block import attend, feed_forward
from backend.models.wan.transformer import BLOCKS, Context, TextContext
from backend.runtime.mesh import TEXT_HEADS, TOKENS, Layout, with_sharding
from backend.runtime.torch_modules import call_module
from backend.runtime.ulysses import KeyRing, RingPlace
from backend.runtime.work import Put, Work
from backend.weights.stacked import StackedWeights


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class SteeredContext(Context):
    """A `Context` with a block's `steering`: the actions that the block's latent frames see."""

    steering: Steering


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class SteeredRing:
    """The field `ring` of Matrix-Game's `Past`: keys and values of the latest latent frames.

    `tokens` is for self-attention, `actions` for the action modules. Both have a fixed size: new frames replace the oldest
    frames.
    """

    tokens: KeyRing
    actions: ActionRing


class ActionDenoiser(BlockDenoiser):
    """Shapes and modules of Matrix-Game's transformer. Methods take the weights as an argument, and are pure."""

    def __init__(self, config: Config, layout: Layout, window: Window, shape: ActionShape, image_width: int) -> None:
        replaced = {"text_dim": 1, "image_dim": image_width, "added_kv_proj_dim": None, "qk_norm": "rms_norm_across_heads"}
        super().__init__({**config, **replaced}, layout, window)
        self._model.condition_embedder.text_embedder = None  # the checkpoint has no weights for a text embedder
        self._shape = shape

    def describe_weights(self, dtype: jnp.dtype) -> StackedWeights:
        """See `StackedTransformer`. The weights of the action modules are a separate stack."""
        described, width = super().describe_weights(dtype), self.heads * self.head_width
        shapes = {
            name: jax.ShapeDtypeStruct((self._shape.layers, *shape), dtype)
            for name, shape in parameter_shapes(self._shape, width).items()
        }
        placed = self._layout.describe_weights(shapes, lambda name, shape: self._layout.stacked_weight(name, shape, "whole"))
        return StackedWeights(outer=described.outer, stacks=described.stacks | {ACTIONS: placed})

    def prepare_text(self, weights: StackedWeights, text: None, bias: None, image: jax.Array | None = None) -> TextContext:
        """Compute every layer's cross-attention keys and values for `image`, the image encoder's tokens [1, tokens, D]."""
        assert image is not None, "the model reads no text"
        tokens = self._call_outer(
            "condition_embedder.image_embedder", weights, image.astype(weights.outer["proj_out.weight"].dtype)
        )

        def one_layer(_, block: dict[str, jax.Array]):
            keys = call_module(self._block.attn2, select_prefix(self._gather_layer(block), "attn2."), text_keys, tokens)
            return None, tuple(self._layout.constrain(array, TEXT_HEADS) for array in keys)

        _, (key, value) = jax.lax.scan(one_layer, None, weights.stacks[BLOCKS])
        return TextContext(key=key, value=value, bias=None)

    def describe_past(self, latent_shape: tuple[int, ...], dtype: jnp.dtype) -> Past:
        past, tokens = super().describe_past(latent_shape, dtype), self.frame_tokens(latent_shape)
        actions = describe_action_ring(self._shape, self.window.frames, tokens, dtype)
        ring = SteeredRing(tokens=past.ring, actions=with_sharding(actions, self._layout.replicated))
        return dataclasses.replace(past, ring=ring)

    def past_sharding(self, shapes: Past) -> Past:
        ring = cast(SteeredRing, shapes.ring)
        placed = super().past_sharding(dataclasses.replace(shapes, ring=ring.tokens))
        actions = with_sharding(ring.actions, self._layout.replicated)
        return dataclasses.replace(placed, ring=SteeredRing(tokens=placed.ring, actions=actions))

    def block_steering(self, actions: np.ndarray, first: int, frames: int) -> Work:
        """Compute the `Steering` of a block of `frames` latent frames from latent frame `first` on. Yields work.

        `actions` [pixel frames, keys and mouse values] starts with the first action that the block sees.
        """
        shape = self._shape
        angles = rotary_angles(np.arange(first, first + frames), shape.time_width, shape.theta)
        windows = action_windows(actions, frames, shape.stride, shape.reach)
        keyboard, mouse = windows[..., : shape.keys], windows[..., shape.keys :]
        numbers: dict[str, Any] = {  # host arrays, which the effect `Put` copies to the devices
            "keyboard": keyboard,
            "mouse": mouse.reshape(frames, -1) if shape.mouse_width else None,
            "cosine": np.cos(angles).astype(np.float32),
            "sine": np.sin(angles).astype(np.float32),
        }
        return (yield Put(Steering(**numbers), self._layout.replicated))

    def block_velocity(
        self, weights: StackedWeights, latents: jax.Array, timestep: jax.Array, context: SteeredContext, past: Past
    ) -> tuple[jax.Array, SteeredRing]:
        (hidden,), time = self._begin(weights, latents, timestep, context)
        text, positions, layers = context.text, context.positions, self._model.config.num_layers
        frame = self.frame_tokens(latents.shape)
        starts, count = self._ring_places(past.frames, latents.shape)
        modulation = time.per_token(time.modulation, hidden.shape[1])

        whole = (weights.stacks[BLOCKS], text.key, text.value)
        attend_to_both, feed = (functools.partial(part, layout=self._layout) for part in (attend, feed_forward))

        def steered(carry: tuple[jax.Array, SteeredRing], layer: Any) -> tuple[tuple[jax.Array, SteeredRing], None]:
            (hidden, ring), (index, parameters) = carry, layer
            block, key, value = layer_at(whole, index)
            block = self._gather_layer(block)
            self._attention.ring, self._attention.place = ring.tokens, RingPlace(layer=index, starts=starts, count=count)
            keys = TextKeys(key=key, value=value, bias=None)
            hidden = call_module(self._block, block, attend_to_both, hidden, keys, modulation, positions)
            place = ActionPlace(layer=index, places=starts // frame, count=count // frame)
            gathered = {  # every chip computes all tokens, without padding
                name: self._layout.gather(name, value, "whole") if value.ndim == 2 else value
                for name, value in parameters.items()
            }
            tokens = self._layout.constrain(hidden, P())[0, : positions.num_tokens]
            changed, actions = apply_actions(self._shape, gathered, tokens, context.steering, ring.actions, place)
            hidden = self._layout.constrain(hidden.at[0, : positions.num_tokens].set(changed), TOKENS)
            hidden = call_module(self._block, block, feed, hidden, modulation)
            hidden = self._layout.constrain(hidden, TOKENS)
            return (hidden, SteeredRing(tokens=self._attention.ring, actions=actions)), None

        def plain(carry, index):
            hidden, self._attention.ring = carry
            self._attention.place = RingPlace(layer=index, starts=starts, count=count)
            hidden = self._run_layer(hidden, (*layer_at(whole, index), None), time, None, positions)
            return (hidden, self._attention.ring), None

        first = (jnp.arange(self._shape.layers), weights.stacks[ACTIONS])
        (hidden, ring), _ = jax.lax.scan(steered, (hidden, cast(SteeredRing, past.ring)), first)
        (hidden, tokens), _ = jax.lax.scan(plain, (hidden, ring.tokens), jnp.arange(self._shape.layers, layers))
        velocity = self._finish(weights, hidden, time, positions, latents.shape)
        return velocity, SteeredRing(tokens=tokens, actions=ring.actions)
