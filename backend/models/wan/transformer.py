"""The Wan transformer: diffusers' modules with this project's attention. One scan over stacked weights runs all layers.

With guidance, the batch has two samples: the prompt first, then the negative prompt.

In Wan 2.2 TI2V, the clean latent frames of an image or clip replace the first latent frames (`expand_timesteps`). The tokens of
these frames have timestep 0. In all other cases, tokens have the step's timestep.
"""

import dataclasses
import functools
import math
from typing import ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers import ModelMixin, WanTransformer3DModel
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed
from jax.sharding import PartitionSpec as P

from backend.checkpoints.json_files import Config
from backend.models.common.flat_attention import Positions, SparsePlan
from backend.models.common.modules import select_prefix
from backend.models.common.token_order import TokenOrder, order_by_curve, order_by_tiles
from backend.models.common.transformer import ClipTransformer, RunLayer, layer_at
from backend.models.spec import SPARSE
from backend.models.wan.attention import KernelAttention, TextKeys, text_keys
from backend.models.wan.block import run_block
from backend.models.wan.sparse_attention import add_sparse_weights
from backend.runtime.mesh import POSITIONS, STACKED_TEXT_HEADS, TEXT_HEADS, TOKENS, Layout, partition, with_sharding
from backend.runtime.torch_modules import call_module
from backend.runtime.work import Put, Work
from backend.weights.stacked import StackedWeights


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TextContext:
    """The text's keys and values in all layers, [layers, B, L, H, D], and the `bias` [B, 1, 1, L] that the layers share.

    See `TextKeys`. With guidance or NAG, B is 2: the prompt, then the negative prompt. A step with NAG has one guidance branch.
    """

    key: jax.Array
    value: jax.Array
    bias: jax.Array | None
    image: tuple[jax.Array, jax.Array] | None = None
    nag: jax.Array | None = None

    @property
    def num_branches(self) -> int:
        return 1 if self.nag is not None else self.key.shape[1]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstFrames:
    """The normalised clean latents [1, C, K, H, W] of the video's first K latent frames. K is 1 for an input image."""

    latents: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageChannels:
    """Additional input channels [1, 4 + C, F, H, W]: four mask channels, then the latents of a clip with the input images."""

    values: jax.Array


Condition = FirstFrames | ImageChannels | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
    """The inputs of the transformer that are the same in all steps with the same expert, guidance and size."""

    text: TextContext
    positions: Positions
    condition: Condition


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Time:
    """Time embeddings [N, D] and modulations [N, 6, D], float32, of N timesteps.

    Index 0 is the step's timestep. If `still_tokens` is not 0, N is 2, and index 1 is timestep 0, which the video's first
    `still_tokens` tokens have. `per_token` expands the values only when they are used, because an array [S, 6, D] is large.
    """

    embedding: jax.Array
    modulation: jax.Array
    still_tokens: int
    order: TokenOrder | None

    def per_token(self, values: jax.Array, tokens: int) -> jax.Array:
        """Return the value of `values` [N, ...] for each token, [1, S, ...], or [1, 1, ...] if all tokens have the same."""
        if not self.still_tokens:
            return values[None]
        numbers = jnp.arange(tokens)
        if self.order is not None:
            padding = (0, tokens - self.order.tokens.shape[0])
            numbers = jnp.pad(self.order.tokens, padding, constant_values=self.still_tokens)
        is_still = (numbers < self.still_tokens).reshape(-1, *[1] * (values.ndim - 1))
        return jnp.where(is_still, values[1], values[0])[None]


BLOCKS = "blocks."  # prefix of the layers' names in the checkpoint
# Transformers of at least this width, in channels, set `StackedTransformer._cuts_copies`. The narrower 1.3B model is slower with
# `_cuts_copies`: docs/lab/tpu-slices.md.
WIDE = 3072


def layer_matrix_bytes(config: Config, itemsize: int) -> dict[str, int]:
    """Return the bytes of one layer's matrices by name, for `plan_copies`. Matrices that not every step uses are left out.

    The matrices whose copies save the most time are first.
    """
    width = config["num_attention_heads"] * config["attention_head_dim"]
    square, rectangle = width * width * itemsize, width * config["ffn_dim"] * itemsize
    gate = ("to_gate_compress",) if config.get(SPARSE) == "vsa" else ()
    self_attention = {f"attn1.{part}.weight": square for part in ("to_q", "to_k", "to_v", *gate, "to_out.0")}
    text = {f"attn2.{part}.weight": square for part in ("to_q", "to_out.0")}
    return self_attention | text | {"ffn.net.0.proj.weight": rectangle, "ffn.net.2.weight": rectangle}


def weight_dtype(name: str, dtype: jnp.dtype) -> jnp.dtype:
    """Return float32 for SLA's projection and for modules that diffusers keeps in float32, else `dtype`."""
    keeps = (*WanTransformer3DModel._keep_in_fp32_modules, "proj_l")
    return jnp.dtype(jnp.float32) if any(part in keeps for part in name.split(".")) else dtype


class Denoiser(ClipTransformer):
    """Shapes and modules of one Wan transformer, without its weights. A subclass can have several stacks of layers."""

    _network: ClassVar[type[ModelMixin]] = WanTransformer3DModel
    _stacks = (BLOCKS,)
    _text_stacks: ClassVar[tuple[str, ...]] = ()  # the stacks whose layers attend to text; empty means all stacks
    _columns = ("to_q.weight", "to_k.weight", "to_v.weight", "to_gate_compress.weight", "ffn.net.0.proj.weight")
    _rows = ("to_out.0.weight", "ffn.net.2.weight")
    _replicated = ("proj_l.weight",)
    # The linear layers for the text's keys and values do not run in every step, so they are not quantized.
    _quantized = (
        "attn1.to_q",
        "attn1.to_k",
        "attn1.to_v",
        "attn1.to_gate_compress",
        "attn1.to_out.0",
        "attn2.to_q",
        "attn2.to_out.0",
        "ffn.net.0.proj",
        "ffn.net.2",
    )

    def __init__(self, config: Config, layout: Layout) -> None:
        with torch.device("meta"):
            model = self._network.from_config({name: value for name, value in config.items() if not name.startswith("sparse_")})
            add_sparse_weights(model, config.get(SPARSE))
            super().__init__(model, layout)
        self.config = config
        self._cuts_copies = self.heads * self.head_width >= WIDE
        self._block = self._model.blocks[0]
        for attn in (self._block.attn1, self._block.attn2):
            attn.set_processor(KernelAttention(layout))
        config = self._model.config  # unlike the argument, it has defaults for entries that older files lack
        self._patch = config.patch_size
        self._rope = WanRotaryPosEmbed(config.attention_head_dim, config.patch_size, config.rope_max_seq_len)

    def _weight_dtype(self, name: str, dtype: jnp.dtype) -> jnp.dtype:
        return weight_dtype(name, dtype)

    def positions(
        self, latent_shape: tuple[int, ...], frame_angles: np.ndarray | None = None, sparse: SparsePlan | None = None
    ) -> Work:
        """Compute the rotary embedding of the tokens of latents [B, C, F, H, W], padded and sharded for the layout. Yields work.

        `frame_angles` [F, a head's time channels] replaces the frames' rotary angles in time. If the plan `sparse` reorders the
        tokens, the result is in the new order.
        """
        with torch.no_grad():
            tables = [table.float().numpy() for table in self._rope(torch.empty(latent_shape))]
        num_tokens = self.num_tokens(latent_shape)
        if frame_angles is not None:
            for table, function in zip(tables, (np.cos, np.sin), strict=True):
                frame_values = np.repeat(function(frame_angles), num_tokens // len(frame_angles), axis=0)
                table[0, :, 0, : frame_angles.shape[1]] = frame_values
        frames, height, width = (length // side for length, side in zip(latent_shape[2:], self._patch, strict=True))
        order = None
        if sparse is not None and sparse.method == "sol":
            order = order_by_curve((frames, height, width))
        elif sparse is not None and sparse.tile is not None:
            order = order_by_tiles((frames, height, width), sparse.tile)
        if order is not None:
            tables, num_tokens = [table[:, order.tokens] for table in tables], len(order.tokens)
            order = yield Put(order, self._layout.replicated)
        padding = ((0, 0), (0, -num_tokens % self._layout.token_multiple), (0, 0), (0, 0))
        padded = [np.pad(table, padding) for table in tables]
        cosine, sine = yield Put(padded, self._layout.sharding(POSITIONS))
        return Positions(cosine=cosine, sine=sine, num_tokens=num_tokens, sparse=sparse, order=order)

    def prepare_text(
        self, weights: StackedWeights, text: jax.Array, bias: jax.Array | None, image: jax.Array | None = None
    ) -> TextContext:
        """Compute the cross-attention keys and values of all layers. If there are several stacks, their layers are concatenated.

        `text` are embeddings [B, L, D]. `bias` [B, 1, 1, L] is added to the text's scores. `image` are the image encoder's tokens
        [images, tokens, D]. A model without separate keys for image tokens joins these tokens with the text.
        """
        text, image_tokens = text.astype(weights.outer["proj_out.weight"].dtype), None
        embedded = self._call_outer("condition_embedder.text_embedder", weights, text)
        if image is not None:
            image_tokens = self._call_outer("condition_embedder.image_embedder", weights, image.astype(text.dtype))
        if image_tokens is not None and self._block.attn2.add_k_proj is None:  # the images' tokens precede each branch's text
            image_tokens = jnp.broadcast_to(image_tokens, (len(embedded), *image_tokens.shape[1:]))
            bias = None if bias is None else jnp.pad(bias, ((0, 0), (0, 0), (0, 0), (image_tokens.shape[1], 0)))
            embedded, image_tokens = jnp.concatenate([image_tokens, embedded], axis=1), None

        image_keys = functools.partial(text_keys, of_images=True)

        def one_layer(_, block: dict[str, jax.Array]):
            parameters = select_prefix(self._gather_layer(block), "attn2.")
            keys = call_module(self._block.attn2, parameters, text_keys, embedded)
            if image_tokens is not None:
                image_pair = call_module(self._block.attn2, parameters, image_keys, image_tokens)
                keys += tuple(jnp.broadcast_to(array, (len(text), *array.shape[1:])) for array in image_pair)
            return None, tuple(self._layout.constrain(array, TEXT_HEADS) for array in keys)

        stack_keys = [jax.lax.scan(one_layer, None, weights.stacks[prefix])[1] for prefix in self._text_stacks or self._stacks]
        key, value, *image_pair = stack_keys[0] if len(stack_keys) == 1 else map(jnp.concatenate, zip(*stack_keys, strict=True))
        pair = cast(tuple[jax.Array, jax.Array] | None, tuple(image_pair) or None)
        return TextContext(key=key, value=value, bias=bias, image=pair)

    def text_sharding(self, shapes: TextContext) -> TextContext:
        """Return the shardings of `prepare_text`'s result: heads over tp, guidance branches over dp."""
        keys = with_sharding(dataclasses.replace(shapes, bias=None), self._layout.sharding(STACKED_TEXT_HEADS))
        return dataclasses.replace(keys, bias=with_sharding(shapes.bias, self._layout.replicated))

    def _layer_runner(self, time: _Time, context: Context) -> RunLayer:
        text = context.text
        return lambda tokens, layer: (self._run_layer(*tokens, layer, time, text.bias, context.positions, text.nag),)

    def _layers(self, weights: StackedWeights, context: Context) -> tuple:
        text = context.text
        return weights.stacks[BLOCKS], text.key, text.value, text.image

    def sparse_velocity(
        self, weights: StackedWeights, latents: jax.Array, times: tuple[jax.Array, ...], context: Context
    ) -> tuple[jax.Array, jax.Array]:
        """Predict the velocity with Sol-Attn in all layers except the first. Also return the totals of `BlockCounts`."""
        tokens, time = self._begin(weights, latents, *times, context)
        dense = dataclasses.replace(context, positions=dataclasses.replace(context.positions, sparse=None))
        layers, run_layer = self._layers(weights, context), self._layer_runner(time, context)
        processor = cast(KernelAttention, self._block.attn1.processor)

        def run(index: jax.Array, carried: tuple) -> tuple:
            tokens, counts = carried
            tokens = run_layer(tokens, layer_at(layers, index))
            assert processor.block_counts is not None, "set by the layer's self-attention"
            return tokens, counts + processor.block_counts

        first = self._layer_runner(time, dense)(tokens, layer_at(layers, 0))
        after, counts = jax.lax.fori_loop(1, self._model.config.num_layers, run, (first, jnp.zeros(2, jnp.float32)))
        return self._finish(weights, after[0], time, context.positions, latents.shape), counts

    def _begin(
        self, weights: StackedWeights, latents: jax.Array, timestep: jax.Array, context: Context
    ) -> tuple[tuple[jax.Array], _Time]:
        """Embed latents and timestep: return the padded tokens [B, S, D], and the time embeddings."""
        condition, positions, still_tokens = context.condition, context.positions, 0
        hidden = latents
        if isinstance(condition, FirstFrames):
            hidden = jnp.concatenate([condition.latents, latents[:, :, condition.latents.shape[2] :]], axis=2)
            still_tokens = self.num_tokens(latents.shape) // latents.shape[2] * condition.latents.shape[2]
        elif isinstance(condition, ImageChannels):
            hidden = jnp.concatenate([latents, condition.values.astype(latents.dtype)], axis=1)
        kernel, bias = weights.outer["patch_embedding.weight"], weights.outer["patch_embedding.bias"]
        patches = to_patches(hidden.astype(kernel.dtype), self._patch)
        if positions.order is not None:  # patches are small, so that reordering them costs less than reordering tokens
            patches = jnp.take(patches, positions.order.tokens, axis=1)
        tokens = patches @ kernel.reshape(kernel.shape[0], -1).T + bias
        tokens = self._pad_tokens(jnp.broadcast_to(tokens, (context.text.num_branches, *tokens.shape[1:])), positions)
        timesteps = jnp.stack([timestep, jnp.zeros_like(timestep)]) if still_tokens else timestep[None]
        embedding, modulation = self._call_outer("condition_embedder", weights, timesteps, function=_time_embedding)
        time = _Time(
            embedding=self._layout.constrain(embedding, P()),
            modulation=self._layout.constrain(modulation, P()).reshape(len(timesteps), 6, -1),
            still_tokens=still_tokens,
            order=positions.order,
        )
        return (tokens,), time

    def _run_layer(
        self,
        hidden: jax.Array,
        layer: tuple,
        time: _Time,
        bias: jax.Array | None,
        positions: Positions,
        nag: jax.Array | None = None,
    ) -> jax.Array:
        """Run one layer on tokens [B, S, D]. `layer` has the layer's weights, and its keys and values of text and images."""
        block, key, value, image = layer
        keys = TextKeys(key=key, value=value, bias=bias, image=image, nag=nag)
        modulation = time.per_token(time.modulation, hidden.shape[1])
        run = functools.partial(run_block, layout=self._layout)
        hidden = call_module(self._block, self._gather_layer(block), run, hidden, keys, modulation, positions)
        return self._layout.constrain(hidden, TOKENS)

    def _finish(self, weights: StackedWeights, hidden: jax.Array, time: _Time, positions: Positions, shape) -> jax.Array:
        embedding = time.per_token(time.embedding, hidden.shape[1])
        shift, scale = jnp.moveaxis(weights.outer["scale_shift_table"] + embedding[:, :, None], 2, 0)
        hidden = self._call_outer("norm_out", weights, hidden.astype(jnp.float32))
        hidden = (hidden * (1 + scale) + shift).astype(weights.outer["proj_out.weight"].dtype)
        patches = hidden @ weights.outer["proj_out.weight"].T + weights.outer["proj_out.bias"]
        velocity = patches.astype(jnp.float32)[:, : positions.num_tokens]
        if positions.order is not None:
            velocity = self._layout.constrain(velocity, partition("branches", None, None))
            velocity = jnp.take(velocity, positions.order.places, axis=1)
        _, _, frames, height, width = shape
        t, h, w = self._patch  # the values of a patch are ordered by time, height, width and channel
        split = velocity.reshape(velocity.shape[0], frames // t, height // h, width // w, t, h, w, -1)
        return split.transpose(0, 7, 1, 4, 2, 5, 3, 6).reshape(velocity.shape[0], -1, frames, height, width)

    def _pad_tokens(self, hidden: jax.Array, positions: Positions) -> jax.Array:
        padding = positions.cosine.shape[1] - hidden.shape[1]
        padded = jnp.pad(hidden, ((0, 0), (0, padding), (0, 0))) if padding else hidden
        return self._layout.constrain(padded, TOKENS)


def _time_embedding(embedder, timesteps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute embedding [N, D] and projection [N, 6 D], float32, of N timesteps, like `WanTimeTextImageEmbedding.forward`."""
    frequencies = embedder.timesteps_proj(timesteps)
    time = embedder.time_embedder(frequencies.to(embedder.time_embedder.linear_1.weight.dtype))
    time = time.to(embedder.time_proj.weight.dtype)
    projected = embedder.time_proj(embedder.act_fn(time))
    return time.float(), projected.float()


def to_patches(latents: jax.Array, patch: tuple[int, int, int]) -> jax.Array:
    """Split latents [B, C, F, H, W] into patches [B, S, C * patch volume].

    The values of a patch are ordered by channel, time, height and width, as in the kernel of a convolution.
    """
    batch, channels, frames, height, width = latents.shape
    t, h, w = patch
    split = latents.reshape(batch, channels, frames // t, t, height // h, h, width // w, w)
    return split.transpose(0, 2, 4, 6, 1, 3, 5, 7).reshape(batch, -1, channels * math.prod(patch))
