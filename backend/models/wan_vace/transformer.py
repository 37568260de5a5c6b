"""VACE's transformer: Wan's transformer with a second stack of layers, the control blocks, which read the control latents.

The control blocks run one after another on the control tokens, which are separate from the video's tokens. Each also outputs a
hint, which is added to the video's tokens. A segment is a control block, the layer after which its hint is added, and the layers
up to the next such layer. Segments run one after another, so that only one hint is in memory at a time.
"""

import copy
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from diffusers import WanVACETransformer3DModel

from backend.checkpoints.json_files import Config
from backend.models.common.flat_attention import Positions
from backend.models.common.step_cache import StepCache, reuse_or_run
from backend.models.common.transformer import layer_at
from backend.models.wan.attention import KernelAttention, TextKeys
from backend.models.wan.block import run_block
from backend.models.wan.transformer import BLOCKS, Context, Denoiser, to_patches
from backend.runtime.mesh import TOKENS, Layout
from backend.runtime.torch_modules import call_module
from backend.weights.stacked import StackedWeights

CONTROL_BLOCKS = "vace_blocks."  # prefix of the control blocks' names in the checkpoint
FIRST_IN = f"{CONTROL_BLOCKS}0.proj_in"  # input projection of the first control block


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ControlContext(Context):
    """A `Context` with the control blocks' input `control` [1, 2 C + 64, F, H, W], and a scalar `scale` that multiplies hints.

    The field `text` has the keys and values of all layers, followed by the keys and values of all control blocks.
    """

    control: jax.Array
    scale: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Segments:
    """Successive segments with an equal number of layers. A segment is one control block with the layers that run after it.

    `control` and `layer` are the indices of the control block and of the first layer of the first segment.
    """

    control: int
    count: int
    layer: int
    length: int


def group_layers(vace_layers: Sequence[int], num_layers: int) -> Iterator[Segments]:
    """Divide the layers into segments whose first layers are `vace_layers`. Group successive segments of equal length."""
    lengths = [end - begin for begin, end in itertools.pairwise([*vace_layers, num_layers])]
    control = 0
    for length, same in itertools.groupby(lengths):
        count = len(list(same))
        yield Segments(control=control, count=count, layer=vace_layers[control], length=length)
        control += count


class ControlledDenoiser(Denoiser):
    """Shapes and modules of a VACE transformer. Methods take the weights as an argument, and are pure."""

    _network = WanVACETransformer3DModel
    _stacks = (BLOCKS, CONTROL_BLOCKS)

    def __init__(self, config: Config, layout: Layout) -> None:
        super().__init__(config, layout)
        self._control_block = copy.deepcopy(self._model.vace_blocks[0])
        self._control_block.proj_in = None  # applied once, before the first control block
        for attn in (self._control_block.attn1, self._control_block.attn2):
            attn.set_processor(KernelAttention(layout))
        self._segments = tuple(group_layers(self._model.config.vace_layers, self._model.config.num_layers))

    def _after_layers(
        self, weights: StackedWeights, tokens: tuple[jax.Array, ...], time: Any, context: ControlContext
    ) -> jax.Array:
        outer, text, positions, (hidden,) = weights.outer, context.text, context.positions, tokens
        kernel, bias = outer["vace_patch_embedding.weight"], outer["vace_patch_embedding.bias"]
        patches = to_patches(context.control.astype(kernel.dtype), self._patch)
        control = self._pad_tokens(patches @ kernel.reshape(kernel.shape[0], -1).T + bias, positions)
        control = control @ outer[f"{FIRST_IN}.weight"].T + outer[f"{FIRST_IN}.bias"]
        control = self._layout.constrain(hidden + control, TOKENS)
        run = functools.partial(_run_control_block, layout=self._layout)

        for segments in self._segments:

            def one_segment(tokens, numbers, length=segments.length):
                """Run one control block, then `length` layers. `tokens` are the video's tokens and the control tokens."""
                (hidden, control), (index, layer) = tokens, numbers
                place = self._model.config.num_layers + index
                keys = TextKeys(key=layer_at(text.key, place), value=layer_at(text.value, place), bias=text.bias, nag=text.nag)
                block = self._gather_layer(layer_at(weights.stacks[CONTROL_BLOCKS], index))
                modulation = time.per_token(time.modulation, 1)
                outputs = call_module(self._control_block, block, run, control, keys, modulation, positions)
                hint, control = (self._layout.constrain(array, TOKENS) for array in outputs)
                hint *= context.scale.astype(hint.dtype)

                def one_layer(hidden, number):
                    after = self._run_indexed_layer(weights, time, context, hidden, layer + number)
                    return after + jnp.where(number == 0, hint, 0), None

                return (jax.lax.scan(one_layer, hidden, jnp.arange(length))[0], control), None

            controls = segments.control + jnp.arange(segments.count)
            layers = segments.layer + segments.length * jnp.arange(segments.count)
            (hidden, control), _ = jax.lax.scan(one_segment, (hidden, control), (controls, layers))
        return hidden

    def cached_velocity(
        self,
        weights: StackedWeights,
        latents: jax.Array,
        times: tuple[jax.Array, ...],
        context: ControlContext,
        cache: StepCache,
        threshold: jax.Array,
    ) -> tuple[jax.Array, StepCache]:
        """See `ClipTransformer`. To decide, the first layer runs without its hint, and maybe a second time with all layers."""
        tokens, time = self._begin(weights, latents, *times, context)
        first, positions = self._run_indexed_layer(weights, time, context, tokens[0], 0), context.positions
        run_all = functools.partial(self._after_layers, weights, tokens, time, context)
        rest, cache = reuse_or_run(self._layout, cache, threshold, positions.num_tokens, tokens[0], first, run_all)
        return self._finish(weights, first + rest, time, positions, latents.shape), cache

    def _run_indexed_layer(
        self, weights: StackedWeights, time: Any, context: ControlContext, hidden: jax.Array, index: jax.Array | int
    ) -> jax.Array:
        text = context.text
        layer = (layer_at(weights.stacks[BLOCKS], index), layer_at(text.key, index), layer_at(text.value, index), None)
        return self._run_layer(hidden, layer, time, text.bias, context.positions, text.nag)


def _run_control_block(
    block, control: torch.Tensor, text: TextKeys, modulation: torch.Tensor, positions: Positions, *, layout: Layout
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run one of diffusers' control blocks, without its input projection. Returns the hint and the new control tokens."""
    control = run_block(block, control, text, modulation, positions, layout=layout)
    return block.proj_out(control), control
