"""The HunyuanVideo 1.5 transformer: diffusers' modules with this project's attention. One scan runs the stacked layers. The
guidance branches are computed together, as a batch. The context tokens are, in this order, the tokens of the image, of the quoted
text and of the prompt. Only the prompt's tokens depend on the step, because the token refiner reads the timestep. The other
context tokens are computed once. All padding is moved to the end. The number of tokens before the padding is an input of the
step, so that one program serves all prompts."""

import dataclasses
import functools
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers import HunyuanVideo15Transformer3DModel
from diffusers.models.normalization import FP32LayerNorm
from jax.sharding import PartitionSpec as P

from backend.checkpoints.json_files import Config
from backend.models.common.flat_attention import Positions
from backend.models.common.step_cache import StepCache, describe_cache
from backend.models.common.token_norm import can_use_pass, normalise_in_one_pass
from backend.models.common.token_order import order_by_tiles
from backend.models.common.transformer import ClipTransformer, RunLayer
from backend.models.hunyuan.attention import JointAttention, TextAttention
from backend.models.hunyuan.sparse_tiles import plan_tiles
from backend.runtime.mesh import TOKENS, Layout, partition
from backend.runtime.torch_modules import call_module
from backend.runtime.work import Put, Work
from backend.sampling.solvers import StepInputs
from backend.schemas.noise_levels import NUM_TRAIN_TIMESTEPS
from backend.weights.stacked import StackedWeights
from kernels.tiles import TileSelection

BLOCKS = "transformer_blocks."  # the prefix of the layers in the checkpoint
PROMPT, QUOTED, PICTURE = range(3)  # rows of the checkpoint's embedding of token types


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokens:
    """The prompts' embeddings and the order of the context tokens. B is 2 with guidance, the branch with the prompt first.

    Attributes:
        prompt: [B, T, D'], the text encoder's embeddings.
        prompt_counts: [B], numbers of tokens in `prompt` without padding.
        order: [B, L], indices into the joined tokens of image, quoted text and prompt. Indices of padding are at the end.
        counts: [B], numbers of context tokens without padding."""

    prompt: jax.Array
    prompt_counts: jax.Array
    order: jax.Array
    counts: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
    """The inputs that all steps share.

    Attributes:
        still: [B, N, D], the tokens of the image and of the quoted text.
        first_frame: [1, C, 1, H, W], the latents of the image, or None."""

    tokens: Tokens
    still: jax.Array
    positions: Positions
    first_frame: jax.Array | None


def layer_matrix_bytes(config: Config, itemsize: int) -> dict[str, int]:
    """Return the bytes of a layer's matrices by name. If every chip has a copy of a matrix, no step has to gather the matrix. The
    matrices whose copies save the most time come first."""
    width = config["num_attention_heads"] * config["attention_head_dim"]
    square, wide = width * width * itemsize, round(config.get("mlp_ratio", 4.0) * width) * width * itemsize
    video = {f"attn.{part}.weight": square for part in ("to_q", "to_k", "to_v", "to_out.0")}
    beside = {f"attn.{part}.weight": square for part in ("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")}
    feed = {f"{part}.net.{place}.weight": wide for part in ("ff", "ff_context") for place in ("0.proj", "2")}
    return video | feed | beside | {f"{norm}.linear.weight": 6 * square for norm in ("norm1", "norm1_context")}


class Denoiser(ClipTransformer):
    """See `ClipTransformer`. A token is one position of the latents: patches have size 1."""

    _stacks = (BLOCKS,)
    _columns = ("to_q.weight", "to_k.weight", "to_v.weight", "add_q_proj.weight", "add_k_proj.weight", "add_v_proj.weight",
                "net.0.proj.weight")  # fmt: skip
    _rows = ("to_out.0.weight", "to_add_out.weight", "net.2.weight")
    _for_few = ("add_", "ff_context.", ".linear.")
    _patch = (1, 1, 1)

    def __init__(self, config: Config, layout: Layout) -> None:
        with torch.device("meta"):
            known = {name: value for name, value in config.items() if not name.startswith("sparse_")}
            super().__init__(HunyuanVideo15Transformer3DModel.from_config(known), layout)
        self._config = config
        self._block = self._model.transformer_blocks[0]
        self._block.attn.set_processor(JointAttention(layout))
        for block in self._model.context_embedder.token_refiner.refiner_blocks:
            block.attn.set_processor(TextAttention(layout))
        norm_in_float32(self._model)

    @staticmethod
    def times(inputs: StepInputs) -> tuple[jax.Array, ...]:
        """Return the timestep of the step and of the next step. Only models with `use_meanflow` read the second."""
        # The first weight of the predictor is the next noise level divided by the current one, except in "ltx-ancestral", "rcm"
        # and "dmd".
        return inputs.timestep, inputs.sigma * inputs.predictor[0] * NUM_TRAIN_TIMESTEPS

    def plan_tiles(self, latent_shape: tuple[int, ...]) -> TileSelection | None:
        return plan_tiles(self._config, latent_shape[2:])

    def padded_tokens(self, latent_shape: tuple[int, ...], room: int = 0) -> int:
        """See `StackedTransformer`. With sparse attention, padding in tiles is counted, and each chip has whole tiles."""
        tiles = self.plan_tiles(latent_shape)
        if tiles is None:
            return super().padded_tokens(latent_shape, room)
        num_places = tiles.num_tiles * tiles.size + room
        return num_places + -num_places % math.lcm(self._layout.token_multiple, self._layout.size("sp") * tiles.size)

    def positions(self, latent_shape: tuple[int, ...], room: int = 0) -> Work:
        """Compute the rotary embedding for latents of this shape, B C F H W, with padding. Yields work. `room` is the number of
        padding tokens after the video tokens, into which the attention can write the context tokens. Sparse attention changes the
        order of the tokens. The rotary embedding is zero for padding tokens, so that their queries and keys are zero."""
        with torch.no_grad():
            tables = [table.float().numpy() for table in self._model.rope(torch.empty(latent_shape, device="cpu"))]
        num_tokens, order = self.num_tokens(latent_shape), None
        tiles = self.plan_tiles(latent_shape)
        if tiles is not None:
            frames, height, width = latent_shape[2:]
            order = order_by_tiles((frames, height, width), tiles.tile)
            num_tokens, in_raster = len(order.tokens), tables
            tables = [np.zeros((num_tokens, table.shape[1]), np.float32) for table in in_raster]
            for table, values in zip(tables, in_raster, strict=True):
                table[order.places] = values
            order = yield Put(order, self._layout.replicated)
        padding = self.padded_tokens(latent_shape, room) - num_tokens
        padded = [np.pad(table, ((0, padding), (0, 0))) for table in tables]
        cosine, sine = yield Put(padded, self._layout.sharding(partition("tokens", None)))
        return Positions(cosine=cosine, sine=sine, num_tokens=num_tokens, tiles=tiles, order=order)

    def embed_still(self, weights: StackedWeights, quoted: jax.Array, picture: jax.Array | None) -> jax.Array:
        """Compute the context tokens that are the same in all steps, [B, N, D]: tokens of the image, then of the quoted text.
        `picture` [1, I, D''] is the image encoder's output. `quoted` [B, Q, D'] is the output of the encoder of quoted text."""
        dtype, kinds = weights.outer["proj_out.weight"].dtype, weights.outer["cond_type_embed.weight"]
        tokens = self._call_outer("context_embedder_2", weights, quoted.astype(dtype)) + kinds[QUOTED]
        if picture is not None:
            seen = self._call_outer("image_embedder", weights, picture.astype(dtype)) + kinds[PICTURE]
            tokens = jnp.concatenate([jnp.broadcast_to(seen, (len(tokens), *seen.shape[1:])), tokens], axis=1)
        return tokens

    def _layer_runner(self, time: jax.Array, context: Context) -> RunLayer:
        run = functools.partial(run_block, layout=self._layout)

        def run_layer(tokens: tuple[jax.Array, ...], block: Mapping[str, jax.Array]) -> tuple[jax.Array, ...]:
            arguments = (*tokens, time, context.tokens.counts, context.positions)
            hidden, beside = call_module(self._block, self._gather_layer(block), run, *arguments)
            return self._layout.constrain(hidden, TOKENS), self._layout.constrain(beside, partition("branches"))

        return run_layer

    def _layers(self, weights: StackedWeights, context: Context) -> dict[str, jax.Array]:
        return weights.stacks[BLOCKS]

    def describe_cache(self, context: Context) -> StepCache:
        branches, _, width = context.still.shape
        return describe_cache(self._layout, (branches, context.positions.cosine.shape[0], width), context.still.dtype)

    def _begin(
        self, weights: StackedWeights, latents: jax.Array, timestep: jax.Array, next_timestep: jax.Array, context: Context
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        """Return the video tokens [B, S, D] with the context tokens [B, L, D], and the time embedding [1, D]."""
        dtype = weights.outer["proj_out.weight"].dtype
        timesteps = (timestep[None], next_timestep[None])[: 2 if self._model.config.use_meanflow else 1]
        time = self._layout.constrain(self._call_outer("time_embed", weights, *timesteps), P()).astype(dtype)
        # The transformer's other input channels are the image's latents and a mask of the first frame. They are zero after the
        # first frame, and zero without an image. Unless sparse attention reorders the tokens, products with these zeros are left
        # out.
        latents = latents.astype(dtype)
        channels, order = latents.shape[1], context.positions.order
        kernel = weights.outer["x_embedder.proj.weight"].reshape(-1, 2 * channels + 1)
        inputs = _flatten_latents(latents)
        if order is not None:  # reorder the inputs instead of the tokens, because inputs have fewer channels
            if context.first_frame is not None:
                given = _flatten_latents(context.first_frame.astype(dtype))
                given = jnp.pad(given, ((0, 0), (0, 0), (0, 1)), constant_values=1)
                given = jnp.pad(given, ((0, 0), (0, inputs.shape[1] - given.shape[1]), (0, 0)))
                inputs = jnp.concatenate([inputs, given], axis=2)
            inputs = jnp.take(inputs, order.tokens, axis=1)
        hidden = inputs @ kernel[:, : inputs.shape[2]].T + weights.outer["x_embedder.proj.bias"]
        if context.first_frame is not None and order is None:
            given = _flatten_latents(context.first_frame.astype(dtype)) @ kernel[:, channels:-1].T + kernel[:, -1]
            hidden = hidden.at[:, : given.shape[1]].add(given)
        padding = context.positions.cosine.shape[0] - hidden.shape[1]
        hidden = jnp.pad(hidden, ((0, 0), (0, padding), (0, 0))) if padding else hidden
        hidden = jnp.broadcast_to(hidden, (len(context.still), *hidden.shape[1:]))
        hidden = self._layout.constrain(hidden, TOKENS)
        tokens = context.tokens
        prompt = self._layout.constrain(tokens.prompt.astype(context.still.dtype), partition("branches"))
        refined = self._call_outer("context_embedder", weights, prompt, timestep, tokens.prompt_counts, function=_refine)
        refined = refined + weights.outer["cond_type_embed.weight"][PROMPT]
        together = jnp.concatenate([context.still, refined], axis=1)
        beside = jnp.take_along_axis(together, tokens.order[:, :, None], axis=1)
        is_token = jnp.arange(beside.shape[1]) < tokens.counts[:, None]
        beside = jnp.where(is_token[:, :, None], beside, 0)
        return (hidden, self._layout.constrain(beside, partition("branches"))), time

    def _finish(self, weights: StackedWeights, hidden: jax.Array, time: jax.Array, positions: Positions, shape) -> jax.Array:
        normal = self._call_outer("norm_out", weights, hidden, time)
        velocity = normal @ weights.outer["proj_out.weight"].T + weights.outer["proj_out.bias"]
        velocity = velocity[:, : positions.num_tokens].astype(jnp.float32)
        if positions.order is not None:
            velocity = self._layout.constrain(velocity, partition("branches", None, None))
            velocity = jnp.take(velocity, positions.order.places, axis=1)
        return jnp.moveaxis(velocity, 1, 2).reshape(len(velocity), -1, *shape[2:])


def norm_in_float32(model: torch.nn.Module) -> None:
    """Make layer norms compute in float32, as PyTorch does. Torchax computes them in the dtype of their input."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.LayerNorm):
                affine = dict(elementwise_affine=child.elementwise_affine, bias=child.bias is not None)
                with torch.device("meta"):
                    setattr(parent, name, FP32LayerNorm(child.normalized_shape, eps=child.eps, **affine))


def _flatten_latents(latents: jax.Array) -> jax.Array:
    """Flatten latents [1, C, F, H, W] to tokens [1, F * H * W, C]."""
    return jnp.moveaxis(latents.reshape(*latents.shape[:2], -1), 1, 2)


def _refine(refiner: torch.nn.Module, text: torch.Tensor, timestep: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Compute the prompt's tokens [B, T, D] as `HunyuanVideo15TokenRefiner.forward` does. `counts` [B] excludes padding."""
    is_token = (torch.arange(text.shape[1], device=counts.device) < counts[:, None])[:, :, None]
    mean = (text.float() * is_token).sum(dim=1) / counts[:, None]
    time = refiner.time_text_embed(timestep[None], mean).to(text.dtype)
    hidden = refiner.proj_in(text)
    for block in refiner.token_refiner.refiner_blocks:
        hidden = block(hidden, time, counts)
    return hidden


def run_block(
    block,
    hidden: torch.Tensor,
    beside: torch.Tensor,
    time: torch.Tensor,
    counts: torch.Tensor,
    positions: Positions,
    *,
    layout: Layout,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the block on the video tokens `hidden` [B, S, D] and the context tokens `beside` [B, L, D]. Return both. On TPUs each
    norm of the video tokens is one Pallas pass, which reads the tokens once. The context tokens are too few to need it. `time`
    [1, D] is the embedding of the timestep. `counts` [B] are the numbers of context tokens without padding."""
    # Shift, scale and gate of the attention, then of the feed-forward, each [1, 1, D].
    ours, theirs = (
        [part.unsqueeze(1) for part in norm.linear(norm.silu(time)).chunk(6, dim=1)]
        for norm in (block.norm1, block.norm1_context)
    )
    normed = _normalise(layout, block.norm1.norm, hidden, *ours[:2])
    normed_beside = _modulate(block.norm1_context.norm(beside), *theirs[:2])
    attended, attended_beside = block.attn(normed, normed_beside, attention_mask=counts, image_rotary_emb=positions)
    hidden, beside = hidden + attended * ours[2], beside + attended_beside * theirs[2]
    fed = block.ff(_normalise(layout, block.norm2, hidden, *ours[3:5]))
    fed_beside = block.ff_context(_modulate(block.norm2_context(beside), *theirs[3:5]))
    return hidden + ours[5] * fed, beside + theirs[5] * fed_beside


def _normalise(
    layout: Layout, norm: torch.nn.LayerNorm, hidden: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    if can_use_pass(layout, hidden, scale):
        return normalise_in_one_pass(layout, norm, hidden, scale, shift)
    return _modulate(norm(hidden), shift, scale)


def _modulate(normal: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return normal * (1 + scale) + shift
