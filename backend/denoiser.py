"""The Wan transformer as one scan over stacked layers: diffusers' own modules, our attention, guidance as a batch of two.

What depends on the prompt alone (the text's keys and values in every layer) is computed once a video. A token's timestep
is the step's own, or 0 for the latent frame that an image gives (`expand_timesteps`, Wan 2.2 TI2V), so two time embeddings
serve all tokens.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers import WanTransformer3DModel
from jax.sharding import PartitionSpec as P

from backend.attention_processor import KernelAttention, Positions, TextKeys, text_keys
from backend.sharding import Layout
from backend.torchax_setup import call_module

BLOCK_PREFIX = "blocks."


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class DenoiserWeights:
    """The transformer's parameters: `outer` by checkpoint name, `blocks` by name within a block, stacked [layers, ...].

    Matrices in `blocks` are kept [layers, in, out], transposed against the checkpoint: XLA's CPU matrix product is up to 1.3
    times faster on them (4,680 x 1,536 by 1,536 x 1,536, measured on two cores), and other backends choose their own layout.
    """

    outer: dict[str, jax.Array]
    blocks: dict[str, jax.Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class TextContext:
    """All layers' text keys and values [layers, B, L, H, D] and the shared `bias` [B, 1, 1, L], or None where all
    positions count alike; B is 2 under guidance, the prompt first."""

    key: jax.Array
    value: jax.Array
    bias: jax.Array | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstFrame:
    """The clean latent frame of image-to-video, [1, C, 1, H, W], normalised."""

    latents: jax.Array


class Denoiser:
    """Shapes and modules of one transformer; its weights are handed to every call. All methods are pure, to be compiled."""

    def __init__(self, config: Mapping[str, Any], layout: Layout) -> None:
        with torch.device("meta"):
            self._model = WanTransformer3DModel.from_config(dict(config)).eval()
        self._layout = layout
        self._block = self._model.blocks[0]
        for attn in (self._block.attn1, self._block.attn2):
            attn.set_processor(KernelAttention(layout))
        self._rope = WanTransformer3DModel.from_config({**config, "num_layers": 0}).rope

    @property
    def in_channels(self) -> int:
        return self._model.config.in_channels

    def describe_weights(self, dtype: jnp.dtype) -> DenoiserWeights:
        """The weights' shapes and where they rest, without the weights."""
        state = {name: jax.ShapeDtypeStruct(value.shape, dtype) for name, value in self._model.state_dict().items()}
        shapes = jax.eval_shape(lambda tensors: split_weights(tensors, self._model.config.num_layers), state)
        layout = self._layout
        return DenoiserWeights(
            outer=layout.describe(shapes.outer, layout.outer_weight), blocks=layout.describe(shapes.blocks, layout.block_weight)
        )

    def describe_positions(self, latent_shape: tuple[int, ...]) -> Positions:
        """Shapes and places of what `positions` returns."""
        num_tokens = self._num_tokens(latent_shape)
        length = num_tokens + -num_tokens % self._layout.token_multiple
        sharding = self._layout.sharding(self._layout.positions)
        table = jax.ShapeDtypeStruct((1, length, 1, self._model.config.attention_head_dim), jnp.float32, sharding=sharding)
        return Positions(cosine=table, sine=table, num_tokens=num_tokens)

    def _num_tokens(self, latent_shape: tuple[int, ...]) -> int:
        return math.prod(latent_shape[2:]) // math.prod(self._model.config.patch_size)

    def positions(self, latent_shape: tuple[int, ...]) -> Positions:
        """The rotary embedding for latents of this shape, B C F H W, padded and spread as the layout wants it."""
        with torch.no_grad():
            cosine, sine = (table.float().numpy() for table in self._rope(torch.empty(latent_shape)))
        num_tokens = cosine.shape[1]
        padding = ((0, 0), (0, -num_tokens % self._layout.token_multiple), (0, 0), (0, 0))
        tables = self._layout.spread(
            {"cosine": np.pad(cosine, padding), "sine": np.pad(sine, padding)}, lambda name, shape: self._layout.positions
        )
        return Positions(num_tokens=num_tokens, **tables)

    def prepare_text(self, weights: DenoiserWeights, text: jax.Array, bias: jax.Array | None) -> TextContext:
        """Every layer's cross-attention keys and values for text embeddings [B, L, D] with logit bias [B, 1, 1, L]."""
        embedder = _with_prefix(weights.outer, "condition_embedder.text_embedder.")
        embedded = call_module(self._model.condition_embedder.text_embedder, embedder, lambda module, value: module(value), text)

        def one_layer(_, block: dict[str, jax.Array]):
            parameters = _with_prefix(self._gathered(block), "attn2.")
            keys = call_module(self._block.attn2, parameters, text_keys, embedded)
            return None, tuple(self._layout.constrain(array, self._layout.text_heads) for array in keys)

        _, (key, value) = jax.lax.scan(one_layer, None, weights.blocks)
        return TextContext(key=key, value=value, bias=bias)

    def place_text(self, shapes: TextContext) -> TextContext:
        """Where the result of `prepare_text` lies: heads over tp, guidance branches over dp."""
        sharding = self._layout.sharding(self._layout.stacked_text_heads)
        key, value = (jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding) for leaf in (shapes.key, shapes.value))
        return dataclasses.replace(shapes, key=key, value=value)

    def velocity(
        self,
        weights: DenoiserWeights,
        latents: jax.Array,
        timestep: jax.Array,
        text: TextContext,
        positions: Positions,
        first_frame: FirstFrame | None,
    ) -> jax.Array:
        """Velocity (noise - data) [B, C, F, H, W] float32 of `latents` [1, C, F, H, W], one for each entry of `text`.

        `timestep` is a scalar, 0 to 1000. With `first_frame`, that frame replaces the first one at timestep 0.
        """
        if first_frame is not None:
            latents = jnp.concatenate([first_frame.latents, latents[:, :, 1:]], axis=2)
        hidden = self._embed_patches(weights, latents, batch=text.key.shape[1])
        tokens_a_frame = hidden.shape[1] // latents.shape[2]
        still_tokens = tokens_a_frame if first_frame is not None else 0
        hidden = self._pad(hidden, positions)
        time, modulation = self._embed_time(weights, timestep, hidden.shape[1], still_tokens)

        def one_layer(hidden, layer):
            block, key, value = layer
            keys = TextKeys(key=key, value=value, bias=text.bias)
            hidden = call_module(self._block, self._gathered(block), _run_block, hidden, keys, modulation, positions)
            return self._layout.constrain(hidden, self._layout.tokens), None

        hidden, _ = jax.lax.scan(one_layer, hidden, (weights.blocks, text.key, text.value))
        velocity = self._project_out(weights, hidden, time)[:, : positions.num_tokens]
        return _from_patches(velocity, latents.shape, self._model.config.patch_size)

    def _pad(self, hidden: jax.Array, positions: Positions) -> jax.Array:
        """Tokens up to the layout's multiple, spread over the chips."""
        padding = positions.cosine.shape[1] - hidden.shape[1]
        padded = jnp.pad(hidden, ((0, 0), (0, padding), (0, 0))) if padding else hidden
        return self._layout.constrain(padded, self._layout.tokens)

    def _gathered(self, block: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """One layer's parameters in the checkpoint's shapes, gathered from the chips that they rest on."""
        layout = self._layout
        return _as_checkpoint(
            {
                name: layout.constrain(value, layout.gathered_weight(name)) if value.ndim == 2 else value
                for name, value in block.items()
            }
        )

    def _embed_patches(self, weights: DenoiserWeights, latents: jax.Array, batch: int) -> jax.Array:
        """Tokens [B, S, D]; the same latents for every guidance branch."""
        kernel, bias = weights.outer["patch_embedding.weight"], weights.outer["patch_embedding.bias"]
        patches = _to_patches(latents.astype(kernel.dtype), self._model.config.patch_size)
        tokens = patches @ kernel.reshape(kernel.shape[0], -1).T + bias
        return jnp.broadcast_to(tokens, (batch, *tokens.shape[1:]))

    def _embed_time(self, weights: DenoiserWeights, timestep, tokens: int, still_tokens: int) -> tuple[jax.Array, jax.Array]:
        """Time embedding [1, S or 1, D] and modulation [1, S or 1, 6, D] float32, the first `still_tokens` at timestep 0."""
        timesteps = jnp.stack([timestep, jnp.zeros_like(timestep)]) if still_tokens else timestep[None]
        embedder = _with_prefix(weights.outer, "condition_embedder.")
        time, modulation = call_module(self._model.condition_embedder, embedder, _time_embedding, timesteps)
        time = self._layout.constrain(time, P())
        modulation = self._layout.constrain(modulation, P()).reshape(len(timesteps), 6, -1)
        if not still_tokens:
            return time[None], modulation[None]
        is_still = jnp.arange(tokens) < still_tokens
        time = jnp.where(is_still[:, None], time[1], time[0])
        return time[None], jnp.where(is_still[:, None, None], modulation[1], modulation[0])[None]

    def _project_out(self, weights: DenoiserWeights, hidden: jax.Array, time: jax.Array) -> jax.Array:
        """Patches of velocity [B, S, patch volume * C] float32."""
        shift, scale = jnp.moveaxis(weights.outer["scale_shift_table"] + time[:, :, None], 2, 0)
        hidden = call_module(self._model.norm_out, {}, lambda norm, value: norm(value), hidden.astype(jnp.float32))
        hidden = (hidden * (1 + scale) + shift).astype(weights.outer["proj_out.weight"].dtype)
        patches = hidden @ weights.outer["proj_out.weight"].T + weights.outer["proj_out.bias"]
        return patches.astype(jnp.float32)


def split_weights(state: Mapping[str, jax.Array], num_layers: int) -> DenoiserWeights:
    """Sort a checkpoint's tensors into outer ones and stacked blocks. Empties nothing; peak is twice the blocks."""
    outer = {name: value for name, value in state.items() if not name.startswith(BLOCK_PREFIX)}
    names = [name.removeprefix(f"{BLOCK_PREFIX}0.") for name in state if name.startswith(f"{BLOCK_PREFIX}0.")]
    blocks = {name: _stack([state[f"{BLOCK_PREFIX}{layer}.{name}"] for layer in range(num_layers)]) for name in names}
    return DenoiserWeights(outer=outer, blocks=blocks)


def spread_weights(weights: DenoiserWeights, layout: Layout) -> DenoiserWeights:
    """The weights at rest on the layout's mesh."""
    return DenoiserWeights(
        outer=layout.spread(weights.outer, layout.outer_weight), blocks=layout.spread(weights.blocks, layout.block_weight)
    )


def _stack(layers: list[jax.Array]) -> jax.Array:
    return jnp.stack([layer.T if layer.ndim == 2 else layer for layer in layers])


def _as_checkpoint(block: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """One block's parameters in the checkpoint's shapes; the transposition disappears in the matrix product."""
    return {name: value.T if value.ndim == 2 else value for name, value in block.items()}


def guide(velocity: jax.Array, guidance: jax.Array) -> jax.Array:
    """Classifier-free guidance: unguided + guidance * (guided - unguided), from [2, ...] to [1, ...], the prompt first."""
    if velocity.shape[0] == 1:
        return velocity
    prompted, unprompted = velocity[:1], velocity[1:]
    return unprompted + guidance * (prompted - unprompted)


def _with_prefix(state: Mapping[str, jax.Array], prefix: str) -> dict[str, jax.Array]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _time_embedding(embedder, timesteps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Time embedding [N, D] and its projection [N, 6 D], float32, as `WanTimeTextImageEmbedding.forward` makes them."""
    frequencies = embedder.timesteps_proj(timesteps)
    time = embedder.time_embedder(frequencies.to(embedder.time_embedder.linear_1.weight.dtype))
    projected = embedder.time_proj(embedder.act_fn(time).to(embedder.time_proj.weight.dtype))
    return time.float(), projected.float()


def _run_block(block, hidden: torch.Tensor, text: TextKeys, modulation: torch.Tensor, rotary) -> torch.Tensor:
    """One diffusers block; four-dimensional modulation takes its path for per-token timesteps."""
    return block(hidden, text, modulation, rotary)


def _to_patches(latents: jax.Array, patch: tuple[int, int, int]) -> jax.Array:
    """[B, C, F, H, W] -> [B, S, C * patch volume], the order of a convolution kernel's weights."""
    batch, channels, frames, height, width = latents.shape
    t, h, w = patch
    split = latents.reshape(batch, channels, frames // t, t, height // h, h, width // w, w)
    return split.transpose(0, 2, 4, 6, 1, 3, 5, 7).reshape(batch, -1, channels * math.prod(patch))


def _from_patches(patches: jax.Array, latent_shape: tuple[int, ...], patch: tuple[int, int, int]) -> jax.Array:
    """[B, S, patch volume * C] -> [B, C, F, H, W], the order of `proj_out`."""
    _, _, frames, height, width = latent_shape
    t, h, w = patch
    split = patches.reshape(patches.shape[0], frames // t, height // h, width // w, t, h, w, -1)
    return split.transpose(0, 7, 1, 4, 2, 5, 3, 6).reshape(patches.shape[0], -1, frames, height, width)
