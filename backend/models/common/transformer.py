"""The shared code of the families' transformers: stacking of layers, sharding over tp, the scan over layers, the step cache.

A family builds diffusers' modules, embeds their inputs and runs one layer.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import torch
from jax.sharding import PartitionSpec as P

from backend.models.common.modules import call, parameter_shapes, select_prefix
from backend.models.common.step_cache import StepCache, reuse_or_run
from backend.runtime.mesh import MATRIX_PARTITIONS, TOKENS, Layout, Role, with_sharding
from backend.runtime.quantized_linear import quantize_linears
from backend.runtime.torch_modules import call_module
from backend.sampling.solvers import StepInputs
from backend.weights.stacked import StackedWeights, Stacks, stack_weights, weights_sharding

RunLayer = Callable[[tuple[jax.Array, ...], Any], tuple[jax.Array, ...]]
"""A function of the tokens before a layer and of the layer's weights that returns the tokens after the layer."""


class StackedTransformer:
    """Shapes and modules of one transformer. Methods take the weights as an argument, and are pure."""

    _stacks: ClassVar[tuple[str, ...]]  # prefixes of the names of the layers' tensors
    # Name endings of matrices whose columns are divided over tp. Their outputs are attention heads or hidden units.
    _columns: ClassVar[tuple[str, ...]]
    # Name endings of matrices whose rows are divided over tp. Their inputs are attention heads or hidden units.
    _rows: ClassVar[tuple[str, ...]]
    _replicated: ClassVar[tuple[str, ...]] = ()  # name endings of small matrices: every chip stores a copy
    _patch: tuple[int, int, int]
    # If every chip has a copy of a matrix, True slices the layer's matrix from the stacked layers before the product. This is
    # faster for many tokens. False slices the matrix inside the product. See `Layout.gather`.
    _cuts_copies: bool = True
    # Name endings of the linear layers that are quantized if the layout's `quantize` is on.
    _quantized: ClassVar[tuple[str, ...]] = ()
    # Parts of names. Matrices with such a part in their name multiply few tokens, so they are always sliced inside the product.
    _for_few: ClassVar[tuple[str, ...]] = ()

    def __init__(self, model: torch.nn.Module, layout: Layout) -> None:
        self._model, self._layout = model.eval(), layout
        self.heads, self.head_width = model.config.num_attention_heads, model.config.attention_head_dim
        self._quantized_dtypes: dict[str, jnp.dtype] = {}
        if layout.quantize != "off":

            def is_quantized(name: str) -> bool:
                return name.startswith(self._stacks) and name.endswith(self._quantized)

            self._quantized_dtypes = quantize_linears(self._model, is_quantized, layout.quantize, layout)

    @classmethod
    def matrix_role(cls, name: str) -> Role:
        if name.endswith(cls._replicated):
            return "replicated"
        if name.endswith(cls._columns):
            return "columns"
        return "rows" if name.endswith(cls._rows) else "whole"

    def describe_weights(self, dtype: jnp.dtype) -> StackedWeights:
        state = parameter_shapes(self._model, dtype)
        dtypes = {name: self._weight_dtype(name, dtype) for name in state} | self._quantized_dtypes
        state = {name: jax.ShapeDtypeStruct(leaf.shape, dtypes[name]) for name, leaf in state.items()}
        shapes = jax.eval_shape(lambda tensors: stack_weights(tensors, self._stacks), state)
        return weights_sharding(shapes, self._layout, self.matrix_role)

    def _weight_dtype(self, name: str, dtype: jnp.dtype) -> jnp.dtype:
        """Return the dtype in which the weight `name` is stored. Subclasses keep some weights in float32."""
        return dtype

    def spread_matrices(self, weights: StackedWeights) -> Stacks:
        """Return the matrices that `copy_matrices` copies to every chip before an expert's steps run, often none."""
        if not (self._layout.copies_on_demand and self._layout.copied):
            return {}
        return {
            prefix: {name: leaf for name, leaf in stack.items() if name in self._layout.copied}
            for prefix, stack in weights.stacks.items()
        }

    def copy_matrices(self, spread: Stacks) -> Stacks:
        """Copy the matrices of `spread_matrices` to every chip. The layers are copied one after the other, to save memory."""

        def one_layer(_: None, layer: Mapping[str, jax.Array]) -> tuple[None, dict[str, jax.Array]]:
            whole = {name: MATRIX_PARTITIONS[self.matrix_role(name)] for name in layer}
            return None, {name: self._layout.constrain(matrix, whole[name]) for name, matrix in layer.items()}

        return {prefix: jax.lax.scan(one_layer, None, stack)[1] for prefix, stack in spread.items()}

    def copies_sharding(self, shapes: Stacks) -> Stacks:
        """Return the shapes and shardings of the result of `copy_matrices`: replicated over dp and sp, divided over tp."""
        return {
            prefix: {
                name: with_sharding(leaf, self._layout.sharding(P(None, *MATRIX_PARTITIONS[self.matrix_role(name)])))
                for name, leaf in stack.items()
            }
            for prefix, stack in shapes.items()
        }

    def num_tokens(self, latent_shape: tuple[int, ...]) -> int:
        return math.prod(latent_shape[2:]) // math.prod(self._patch)

    def padded_tokens(self, latent_shape: tuple[int, ...], room: int = 0) -> int:
        """Return the number of tokens plus `room` reserved places, rounded up to a multiple of the layout's `token_multiple`."""
        num_tokens = self.num_tokens(latent_shape) + room
        return num_tokens + -num_tokens % self._layout.token_multiple

    def kept_sharding(self, shapes: tuple[object, Any]) -> tuple[object, Any]:
        """Return the shapes and shardings of a step's result: the sampler state, and changes of tokens [B, S, D] or scalars."""
        layout, (state, kept) = self._layout, shapes
        tokens = layout.sharding(TOKENS)
        placed = jax.tree.map(lambda leaf: with_sharding(leaf, tokens if leaf.ndim == 3 else layout.replicated), kept)
        return with_sharding(state, layout.replicated), placed

    def _gather_layer(self, block: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        gathered = {}
        for name, value in block.items():
            cuts_copy = self._cuts_copies and not any(part in name for part in self._for_few)
            is_matrix = value.ndim == 2
            gathered[name] = self._layout.gather(name, value, self.matrix_role(name), cuts_copy) if is_matrix else value
        # Stacked matrices are [in, out], and the checkpoint's [out, in]. XLA merges the transposition into the matrix product.
        return {name: value.T if value.ndim == 2 else value for name, value in gathered.items()}

    def _call_outer(self, name: str, weights: StackedWeights, *arguments: object, function: Callable = call) -> Any:
        """Call `function(module, *arguments)`. `module` is the transformer's module `name`, outside of the layers."""
        return call_module(self._model.get_submodule(name), select_prefix(weights.outer, f"{name}."), function, *arguments)


class ClipTransformer(StackedTransformer):
    """A transformer of whole videos. A step can reuse the change that an earlier step's layers made to the tokens.

    A family implements `_begin`, `_layers`, `_layer_runner` and `_finish`. The context must have the field `positions`. The
    tokens are a tuple of arrays: the first array has the video's tokens.
    """

    _begin: Callable[..., tuple[tuple[jax.Array, ...], Any]]  # (weights, latents, *times, context) -> (tokens, time embedding)
    _layer_runner: Callable[[Any, Any], RunLayer]  # (time embedding, context) -> function that runs one layer
    _layers: Callable[[StackedWeights, Any], Any]  # (weights, context) -> tree of arrays with the layers along axis 0
    _finish: Callable[..., jax.Array]  # (weights, video tokens, time embedding, positions, latents' shape) -> velocity

    @staticmethod
    def times(inputs: StepInputs) -> tuple[jax.Array, ...]:
        return (inputs.timestep,)

    def velocity(self, weights: StackedWeights, latents: jax.Array, times: tuple[jax.Array, ...], context: Any) -> jax.Array:
        """Predict the velocity (noise - data) of latents [1, C, F, H, W]. Return [B, C, F, H, W] float32 for B guidance branches.

        `times` are scalars from 0 to 1000.
        """
        tokens, time = self._begin(weights, latents, *times, context)
        after = self._after_layers(weights, tokens, time, context)
        return self._finish(weights, after, time, context.positions, latents.shape)

    def kept_velocity(
        self, weights: StackedWeights, latents: jax.Array, times: tuple[jax.Array, ...], context: Any
    ) -> tuple[jax.Array, jax.Array]:
        """Predict the velocity. Also return the change that all layers made to the video's tokens, [B, S, D]."""
        tokens, time = self._begin(weights, latents, *times, context)
        after = self._after_layers(weights, tokens, time, context)
        velocity = self._finish(weights, after, time, context.positions, latents.shape)
        return velocity, self._layout.constrain(after - tokens[0], TOKENS)

    def reused_velocity(
        self, weights: StackedWeights, latents: jax.Array, times: tuple[jax.Array, ...], context: Any, added: jax.Array
    ) -> jax.Array:
        """Predict the velocity without running layers: add `added`, the change that another step's layers made, to the tokens."""
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
        """Predict the velocity. The layers after the first may be skipped, see `backend.models.common.step_cache`."""
        tokens, time = self._begin(weights, latents, *times, context)
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
        return self._finish(weights, first[0] + rest, time, context.positions, latents.shape), cache

    def _after_layers(self, weights: StackedWeights, tokens: tuple[jax.Array, ...], time: object, context: object) -> jax.Array:
        run_layer = self._layer_runner(time, context)
        return jax.lax.scan(lambda tokens, layer: (run_layer(tokens, layer), None), tokens, self._layers(weights, context))[0][0]


def layer_at(layers: object, index: jax.Array | int) -> Any:
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False), layers)
