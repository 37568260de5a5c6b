"""What the families' transformers share: layers as a stack, which matrices are cut over tp, and a scan with a step cache.

A family builds diffusers' modules, embeds what they read, and runs one layer; here the layers' weights are described, gathered
and gone through.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import torch
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from backend.models.common.modules import call, shapes_of, with_prefix
from backend.models.common.step_cache import StepCache, cached_sharding, reuse_or_run
from backend.runtime.mesh import Layout, Role, with_sharding
from backend.runtime.torch_modules import call_module
from backend.sampling.solvers import StepInputs
from backend.weights.stacked import StackedWeights, Stacks, stack_weights, unstack_layer, weights_sharding

RunLayer = Callable[[tuple[jax.Array, ...], Any], tuple[jax.Array, ...]]
"""Tokens after one layer from those before it; a layer is what `run_layers` takes, without its first axis."""


class StackedTransformer:
    """Shapes and modules of one transformer; weights are passed to every call. All methods are pure, to be compiled."""

    _stacks: ClassVar[tuple[str, ...]]  # the prefixes of its layers in the checkpoint
    _columns: ClassVar[tuple[str, ...]]  # endings of matrices out of which heads and hidden units come
    _rows: ClassVar[tuple[str, ...]]  # endings of those into which they go
    _patch: tuple[int, int, int]
    _cuts_copies: bool = True  # see `Layout.gather`
    _for_few: ClassVar[tuple[str, ...]] = ()  # parts of the names of matrices for few tokens, whose copies are never cut out

    def __init__(self, model: torch.nn.Module, layout: Layout) -> None:
        self._model, self._layout = model.eval(), layout

    @property
    def heads(self) -> int:
        return self._model.config.num_attention_heads

    @property
    def head_width(self) -> int:
        return self._model.config.attention_head_dim

    @classmethod
    def role_of(cls, name: str) -> Role:
        """How a matrix of a layer is cut over tp."""
        if name.endswith(cls._columns):
            return "columns"
        return "rows" if name.endswith(cls._rows) else "whole"

    def describe_weights(self, dtype: jnp.dtype) -> StackedWeights:
        """The weights' shapes and where they rest, without the weights."""
        state = shapes_of(self._model, dtype)
        state = {name: jax.ShapeDtypeStruct(leaf.shape, self._weight_dtype(name, dtype)) for name, leaf in state.items()}
        shapes = jax.eval_shape(lambda tensors: stack_weights(tensors, self._stacks), state)
        return weights_sharding(shapes, self._layout, self.role_of)

    def _weight_dtype(self, name: str, dtype: jnp.dtype) -> jnp.dtype:
        """The dtype that a weight is kept in, in a model of this dtype."""
        return dtype

    def spread_matrices(self, weights: StackedWeights) -> Stacks:
        """Those of the weights of which every chip has a copy only while steps run; none if the copies rest there always."""
        if not (self._layout.copies_on_demand and self._layout.copied):
            return {}
        return {
            prefix: {name: leaf for name, leaf in stack.items() if name in self._layout.copied}
            for prefix, stack in weights.stacks.items()
        }

    def copy_matrices(self, spread: Stacks) -> Stacks:
        """The same matrices, gathered layer by layer, so that no more than a layer is in memory beside them."""

        def one_layer(_: None, layer: Mapping[str, jax.Array]) -> tuple[None, dict[str, jax.Array]]:
            whole = {name: self._layout.gathered_weight(self.role_of(name)) for name in layer}
            return None, {name: self._layout.constrain(matrix, whole[name]) for name, matrix in layer.items()}

        return {prefix: jax.lax.scan(one_layer, None, stack)[1] for prefix, stack in spread.items()}

    def copies_sharding(self, shapes: Stacks) -> Stacks:
        """Where the result of `copy_matrices` lies: whole on every chip, but for tp."""

        def where(name: str) -> NamedSharding:
            return self._layout.sharding(P(None, *self._layout.gathered_weight(self.role_of(name))))

        return {
            prefix: {name: with_sharding(leaf, where(name)) for name, leaf in stack.items()} for prefix, stack in shapes.items()
        }

    def num_tokens(self, latent_shape: tuple[int, ...]) -> int:
        """Tokens of latents of this shape, B C F H W."""
        return math.prod(latent_shape[2:]) // math.prod(self._patch)

    def padded_tokens(self, latent_shape: tuple[int, ...], room: int = 0) -> int:
        """The same number with the layout's padding, and with room for so many tokens beside the video's."""
        num_tokens = self.num_tokens(latent_shape) + room
        return num_tokens + -num_tokens % self._layout.token_multiple

    def cached_sharding(self, shapes: tuple[Any, StepCache]) -> tuple[Any, StepCache]:
        """Where the result of a step with a cache lies."""
        return cached_sharding(self._layout, shapes)

    def kept_sharding(self, shapes: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        """Where the result of a step lies that also gives what all layers added."""
        state, added = shapes
        return self._layout.replicate_shapes(state), with_sharding(added, self._layout.sharding(self._layout.tokens))

    def _gathered(self, block: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """One layer's parameters in the checkpoint's shapes, gathered from the chips where they rest."""
        layout = self._layout
        gathered = {
            name: layout.gather(name, value, self.role_of(name), self._cuts_copy(name)) if value.ndim == 2 else value
            for name, value in block.items()
        }
        return unstack_layer(gathered)

    def _cuts_copy(self, name: str) -> bool:
        return self._cuts_copies and not any(part in name for part in self._for_few)

    def _call_outer(self, name: str, weights: StackedWeights, *arguments: Any, function: Callable = call) -> Any:
        """The result of `function(module, *arguments)` for the module of this name outside the layers."""
        return call_module(self._model.get_submodule(name), with_prefix(weights.outer, f"{name}."), function, *arguments)


class ClipTransformer(StackedTransformer):
    """A transformer of whole videos, whose layers a step may spare. A family embeds what they read (`_begin`), names them and
    runs one (`_layers`, `_layer_runner`), and reads the velocity from the tokens after the last (`_finish`). Contexts have
    `positions`, and the first of the tokens are the video's."""

    _begin: Callable[..., tuple[tuple[jax.Array, ...], Any]]  # of weights, latents, times, context: the tokens, and the time
    _layer_runner: Callable[[Any, Any], RunLayer]  # of the time and the context
    _layers: Callable[[StackedWeights, Any], Any]  # of the weights and the context: trees, the layers along their first axis
    _finish: Callable[..., jax.Array]  # of weights, the video's tokens, the time, positions and the latents' shape

    @staticmethod
    def times(inputs: StepInputs) -> tuple[jax.Array, ...]:
        """The timesteps that a step reads, scalars."""
        return (inputs.timestep,)

    def velocity(self, weights: StackedWeights, latents: jax.Array, times: tuple[jax.Array, ...], context: Any) -> jax.Array:
        """Velocity (noise - data) [B, C, F, H, W] float32 of `latents` [1, C, F, H, W], one for each guidance branch. `times`, as
        from `times`, are scalars, 0 to 1000."""
        tokens, time = self._begin(weights, latents, *times, context)
        after = self._after_layers(weights, tokens, time, context)
        return self._finish(weights, after, time, context.positions, latents.shape)

    def kept_velocity(
        self, weights: StackedWeights, latents: jax.Array, times: tuple[jax.Array, ...], context: Any
    ) -> tuple[jax.Array, jax.Array]:
        """As `velocity`, and what all layers added to the video's tokens, [B, S, D]."""
        tokens, time = self._begin(weights, latents, *times, context)
        after = self._after_layers(weights, tokens, time, context)
        velocity = self._finish(weights, after, time, context.positions, latents.shape)
        return velocity, self._layout.constrain(after - tokens[0], self._layout.tokens)

    def reused_velocity(
        self, weights: StackedWeights, latents: jax.Array, times: tuple[jax.Array, ...], context: Any, added: jax.Array
    ) -> jax.Array:
        """As `velocity`, but in place of the layers this is added, as they did in another step. Needs none of their weights."""
        tokens, time = self._begin(weights, latents, *times, context)
        return self._finish(weights, tokens[0] + added, time, context.positions, latents.shape)

    def cached_velocity(
        self,
        weights: StackedWeights,
        latents: jax.Array,
        times: tuple[jax.Array, ...],
        context: Any,
        cache: StepCache,
        threshold: jax.Array,
    ) -> tuple[jax.Array, StepCache]:
        """As `velocity`, but the layers after the first may be spared, see `backend.models.common.step_cache`."""
        tokens, time = self._begin(weights, latents, *times, context)
        after, cache = self._reuse_or_run(weights, tokens, time, context, cache, threshold)
        return self._finish(weights, after, time, context.positions, latents.shape), cache

    def _after_layers(self, weights: StackedWeights, tokens: tuple[jax.Array, ...], time: Any, context: Any) -> jax.Array:
        """The video's tokens [B, S, D] after all layers, from the tokens before the first."""
        return run_layers(self._layer_runner(time, context), tokens, self._layers(weights, context))

    def _reuse_or_run(
        self,
        weights: StackedWeights,
        tokens: tuple[jax.Array, ...],
        time: Any,
        context: Any,
        cache: StepCache,
        threshold: jax.Array,
    ) -> tuple[jax.Array, StepCache]:
        """As `_after_layers`, but those after the first may be spared; and the cache after it."""
        run_layer, layers = self._layer_runner(time, context), self._layers(weights, context)

        def run(index, tokens):
            return run_layer(tokens, layer_at(layers, index))

        first = run(0, tokens)
        rest, cache = reuse_or_run(
            self._layout,
            cache,
            threshold,
            context.positions.num_tokens,
            tokens[0],
            first[0],
            lambda: jax.lax.fori_loop(1, self._model.config.num_layers, run, first)[0],
        )
        return first[0] + rest, cache


def run_layers(run_layer: RunLayer, tokens: tuple[jax.Array, ...], layers: Any) -> jax.Array:
    """The first of `tokens` after all layers: trees of arrays with the layers along their first axis."""
    return jax.lax.scan(lambda tokens, layer: (run_layer(tokens, layer), None), tokens, layers)[0][0]


def layer_at(layers: Any, index: jax.Array | int) -> Any:
    """One layer of such trees."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False), layers)
