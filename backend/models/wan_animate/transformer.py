"""Animate-2's transformer: Wan's, which sees a picture before the video, and of a driving clip each frame at its own moment.

The clip goes through all layers once for each segment of the video, at timestep 1 and with a text of its own: `extracted`. Each
step then sees its keys and values. In the rotary embedding the clip lies beside the video: one latent frame later, as the video's
first one is the picture, and to the right of it. The branch without the prompt leaves out one layer.

Source: diffusers, transformer_wan_animate_2.py. There keys are kept before they are turned; they are turned to the same places by
the clip's own pass and by the video's, so here they are kept after it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from backend.models.common.flat_attention import Positions
from backend.models.common.transformer import RunLayer
from backend.models.wan.transformer import Context, Denoiser
from backend.models.wan_animate.attention import DrivenAttention
from backend.models.wan_animate.names import to_wan_config
from backend.runtime.driven_attention import ClipKeys, describe_clip_keys
from backend.runtime.mesh import Layout
from backend.runtime.work import Put, Work
from backend.weights.stacked import StackedWeights

THETA = 10_000.0  # of the rotary embedding; source: diffusers, `rope_params`
CLIP_TIMESTEP = 1.0
LEFT_OUT = 9  # the layer that the branch without the prompt leaves out, counted from 0
BESIDE = {"refer_offset_t": 1, "refer_offset_h": 0, "refer_offset_w": -1}
"""Where the clip's first token lies, in tokens from the video's first; -1 for as many as the clip itself has. diffusers'
defaults."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class DrivenContext(Context):
    """A `Context` with the driving clip's keys and values in every layer."""

    clip: ClipKeys


class DrivenDenoiser(Denoiser):
    """Shapes and modules of one transformer; weights are passed to every call. All methods are pure, to be compiled. `config` is
    that of the checkpoint."""

    def __init__(self, config: Mapping[str, Any], layout: Layout) -> None:
        super().__init__(to_wan_config(config), layout)
        self._attention = DrivenAttention(layout)
        self._block.attn1.set_processor(self._attention)
        self._offsets = tuple(config.get(name, usual) for name, usual in BESIDE.items())
        self._stride = config.get("refer_stride", 1)

    def clip_positions(self, latent_shape: tuple[int, ...]) -> Work:
        """Work: the rotary embedding of a clip's latents of this shape, B C F H W, beside the video's."""
        grid = [length // size for length, size in zip(latent_shape[2:], self._patch, strict=True)]
        offsets = [grid[axis] if offset < 0 else offset for axis, offset in enumerate(self._offsets)]
        places = [
            offset + step * np.arange(length) for offset, step, length in zip(offsets, (self._stride, 1, 1), grid, strict=True)
        ]
        angles = self._rotary_angles(places)
        padding = ((0, self.padded_tokens(latent_shape) - len(angles)), (0, 0))
        tables = [np.pad(function(angles).astype(np.float32), padding)[None, :, None] for function in (np.cos, np.sin)]
        cosine, sine = yield Put(tables, self._layout.sharding(self._layout.positions))
        return Positions(cosine=cosine, sine=sine, num_tokens=len(angles))

    def _rotary_angles(self, places: Sequence[np.ndarray]) -> np.ndarray:
        """Angles [tokens, D] float64 of tokens at these places along time, height and width, each value twice."""
        rope = self._rope
        axes = []
        for axis, (numbers, width) in enumerate(zip(places, (rope.t_dim, rope.h_dim, rope.w_dim), strict=True)):
            rates = THETA ** (-np.arange(0, width, 2, dtype=np.float64) / width)
            shape = [1, 1, 1, width]
            shape[axis] = len(numbers)
            axes.append(np.repeat(np.outer(numbers, rates), 2, axis=1).reshape(shape))
        whole = [len(numbers) for numbers in places]
        spread = [np.broadcast_to(one, (*whole, one.shape[3])) for one in axes]
        return np.concatenate(spread, axis=3).reshape(-1, sum(one.shape[3] for one in axes))

    def extracted(self, weights: StackedWeights, latents: jax.Array, context: Context) -> ClipKeys:
        """Every layer's keys and values of a driving clip with these `latents` [1, C, F, H, W]. The context's condition holds a
        mask of ones and the same latents; its text has a row for each chip on dp, all alike."""
        (hidden,), time = self._begin(weights, latents, jnp.float32(CLIP_TIMESTEP), context)
        text, positions = context.text, context.positions

        def one_layer(hidden: jax.Array, layer: tuple) -> tuple[jax.Array, ClipKeys]:
            self._attention.num_frames = latents.shape[2] // self._patch[0]
            hidden = self._run_layer(hidden, layer, time, text.bias, positions)
            return hidden, self._attention.extracted

        keys = jax.lax.scan(one_layer, hidden, super()._layers(weights, context))[1]
        places = describe_clip_keys(self._layout, keys)
        return jax.tree.map(lambda array, place: self._layout.constrain(array, place.sharding.spec), keys, places)

    def clip_keys_sharding(self, shapes: ClipKeys) -> ClipKeys:
        """Where the result of `extracted` lies."""
        return describe_clip_keys(self._layout, shapes)

    def _layer_runner(self, time: Any, context: DrivenContext) -> RunLayer:
        text, positions = context.text, context.positions
        leaves_out = text.branches > 1 and self._model.config.num_layers > LEFT_OUT

        def run_layer(tokens: tuple[jax.Array, ...], layer: tuple) -> tuple[jax.Array, ...]:
            (before,), (index, *rest) = tokens, layer
            self._attention.num_frames, self._attention.keys, self._attention.layer = None, context.clip, index
            after = self._run_layer(before, tuple(rest), time, text.bias, positions, text.nag)
            if leaves_out:
                stays = (index == LEFT_OUT) & (jnp.arange(len(before)) > 0)
                after = jnp.where(stays[:, None, None], before, after)
            return (after,)

        return run_layer

    def _layers(self, weights: StackedWeights, context: DrivenContext) -> tuple:
        """As Wan's, each with its number."""
        return jnp.arange(self._model.config.num_layers), *super()._layers(weights, context)
