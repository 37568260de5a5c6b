"""Animate-2's transformer: Wan's transformer, which also reads an image and, frame by frame, a driving video. The image is the
first latent frame. `extracted` runs the driving video through all layers once per segment, at timestep 1 and with a separate
prompt. It returns the keys and values of every layer, which each denoising step then reads. The rotary embedding gives the
driving video positions to the right of the video. In time, the driving video starts one latent frame after the video, because the
first latent frame is the image. The guidance branch with the negative prompt omits one layer. Source: diffusers,
transformer_wan_animate_2.py. That code stores the keys before the rotary embedding. This module stores the rotated keys, because
all steps rotate the keys by the same angles."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from backend.checkpoints.json_files import Config
from backend.models.common.flat_attention import Positions, rotary_angles
from backend.models.common.transformer import RunLayer
from backend.models.wan.transformer import Context, Denoiser
from backend.models.wan_animate.attention import DrivenAttention
from backend.models.wan_animate.names import to_wan_config
from backend.runtime.driven_attention import ClipKeys, describe_clip_keys
from backend.runtime.mesh import POSITIONS, Layout
from backend.runtime.work import Put, Work
from backend.weights.stacked import StackedWeights

CLIP_TIMESTEP = 1.0
LEFT_OUT = 9  # index of the layer that the branch with the negative prompt omits
BESIDE = {"refer_offset_t": 1, "refer_offset_h": 0, "refer_offset_w": -1}
"""The position of the driving video's first token in time, height and width, counted in tokens from the video's first token. The
value -1 is the driving video's number of tokens along this axis. The values are diffusers' defaults."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class DrivenContext(Context):
    clip: ClipKeys


class DrivenDenoiser(Denoiser):
    """Shapes and modules of Animate-2's transformer. Methods take the weights as an argument, and are pure."""

    def __init__(self, config: Config, layout: Layout) -> None:
        super().__init__(to_wan_config(config), layout)
        self._attention = DrivenAttention(layout)
        self._block.attn1.set_processor(self._attention)
        self._offsets = tuple(config.get(name, default) for name, default in BESIDE.items())
        self._stride = config.get("refer_stride", 1)

    def clip_positions(self, latent_shape: tuple[int, ...]) -> Work:
        rope, grid = self._rope, [length // size for length, size in zip(latent_shape[2:], self._patch, strict=True)]
        offsets = [grid[axis] if offset < 0 else offset for axis, offset in enumerate(self._offsets)]
        places = [
            offset + step * np.arange(length) for offset, step, length in zip(offsets, (self._stride, 1, 1), grid, strict=True)
        ]
        axes = []  # the angles float64 of time, height and width; each angle appears twice, for a pair of channels
        for axis, (numbers, width) in enumerate(zip(places, (rope.t_dim, rope.h_dim, rope.w_dim), strict=True)):
            shape = [1, 1, 1, width]
            shape[axis] = len(numbers)
            axes.append(rotary_angles(numbers, width).reshape(shape))
        expanded = [np.broadcast_to(table, (*grid, table.shape[3])) for table in axes]
        angles = np.concatenate(expanded, axis=3).reshape(-1, sum(table.shape[3] for table in axes))
        padding = ((0, self.padded_tokens(latent_shape) - len(angles)), (0, 0))
        tables = [np.pad(function(angles).astype(np.float32), padding)[None, :, None] for function in (np.cos, np.sin)]
        cosine, sine = yield Put(tables, self._layout.sharding(POSITIONS))
        return Positions(cosine=cosine, sine=sine, num_tokens=len(angles))

    def extracted(self, weights: StackedWeights, latents: jax.Array, context: Context) -> ClipKeys:
        """Extract every layer's keys and values from a driving video's `latents` [1, C, F, H, W]. `context` is the context for
        the driving video. Its condition must contain a mask of ones and the same latents. Its text must have one row for each
        index on the mesh axis dp, and all rows must be equal."""
        (hidden,), time = self._begin(weights, latents, jnp.float32(CLIP_TIMESTEP), context)
        text, positions = context.text, context.positions

        def one_layer(hidden: jax.Array, layer: tuple) -> tuple[jax.Array, ClipKeys]:
            self._attention.num_frames = latents.shape[2] // self._patch[0]
            hidden = self._run_layer(hidden, layer, time, text.bias, positions)
            return hidden, self._attention.extracted

        keys = jax.lax.scan(one_layer, hidden, super()._layers(weights, context))[1]
        places = describe_clip_keys(self._layout, keys)
        return jax.tree.map(lambda array, place: self._layout.constrain(array, place.sharding.spec), keys, places)

    def _layer_runner(self, time: Any, context: DrivenContext) -> RunLayer:
        text, positions = context.text, context.positions
        leaves_out = text.num_branches > 1 and self._model.config.num_layers > LEFT_OUT

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
        return jnp.arange(self._model.config.num_layers), *super()._layers(weights, context)
