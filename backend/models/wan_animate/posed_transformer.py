"""Animate-1's transformer: Wan's transformer with poses added to the video's tokens, and one face adapter for every five layers.
In a face adapter each token attends to the few face tokens of the same latent frame. Scores are computed for the face tokens of
all frames, and a mask excludes other frames. This costs less than grouping the tokens by frame, because the tokens are sharded
over chips. One encoder computes a motion vector for each face, a weighted sum of orthogonal directions. A second encoder computes
face tokens from the motion vectors. Both run once per segment. Source: diffusers, transformer_wan_animate.py."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers import WanAnimateTransformer3DModel
from diffusers.models.transformers.transformer_wan_animate import WanAnimateMotionEncoder

from backend.checkpoints.json_files import Config
from backend.models.common.flat_attention import as_array
from backend.models.common.modules import select_prefix
from backend.models.common.transformer import layer_at
from backend.models.wan.transformer import BLOCKS, Context, Denoiser, to_patches, weight_dtype
from backend.runtime.mesh import TEXT_HEADS, TOKENS, Layout
from backend.runtime.torch_modules import call_module, torchax
from backend.weights.stacked import StackedWeights

ADAPTERS = "face_adapter."  # prefix of the face adapters' names in the checkpoint
POSE = "pose_patch_embedding"
MOTION, FACE = "motion_encoder.", "face_encoder."
SPAN = f"{MOTION}motion_synthesis_weight"
AT_ONCE = 8  # faces per batch; diffusers' `motion_encoder_batch_size`
BLUR = np.array([1, 3, 3, 1], np.float32)  # the motion encoder's blur filter, which checkpoints do not store


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class FaceKeys:
    """Keys and values of the face tokens, [adapters, B, latent frames * N, H, D]. Every latent frame has N face tokens."""

    key: jax.Array
    value: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class PosedContext(Context):
    """A `Context` with the latents of a segment's poses, [1, C, F, H, W], and the keys and values of its face tokens."""

    pose: jax.Array
    face: FaceKeys


class PosedDenoiser(Denoiser):
    """Shapes and modules of Animate-1's transformer. Methods take the weights as an argument, and are pure."""

    _network = WanAnimateTransformer3DModel
    _stacks = (BLOCKS, ADAPTERS)
    _text_stacks = (BLOCKS,)

    def __init__(self, config: Config, layout: Layout) -> None:
        super().__init__(config, layout)
        self._adapter = self._model.face_adapter[0]
        self._every = self._model.config.inject_face_latents_blocks

    def _weight_dtype(self, name: str, dtype: jnp.dtype) -> jnp.dtype:
        return jnp.dtype(jnp.float32) if name == SPAN else weight_dtype(name, dtype)

    def motion(self, weights: StackedWeights, faces: jax.Array, span: jax.Array) -> jax.Array:
        """Encode N faces [N, 3, side, side] in [-1, 1] to motion vectors [N, out]. `span` [out, motion] are the directions."""
        encoder, kernel = self._model.motion_encoder, np.outer(BLUR, BLUR)
        own, kernel = select_prefix(weights.outer, MOTION), jnp.asarray(kernel / kernel.sum())
        for number in range(len(encoder.res_blocks)):
            own |= {f"res_blocks.{number}.{name}.blur_kernel": kernel for name in ("conv2", "conv_skip")}
        numbers = call_module(encoder, own, _motion_coefficients, faces.astype(own["conv_in.weight"].dtype))
        motion = jnp.matmul(numbers.astype(jnp.float32), span.T, precision=jax.lax.Precision.HIGHEST)
        return motion.astype(numbers.dtype)

    def face_keys(self, weights: StackedWeights, motion: jax.Array) -> FaceKeys:
        """Compute the keys and values of face tokens in all face adapters, from a segment's motion vectors [B, frames, out]."""
        own = select_prefix(weights.outer, FACE)
        tokens = call_module(self._model.face_encoder, own, lambda encoder, motion: encoder(motion), motion)
        tokens = jnp.pad(tokens, ((0, 0), (1, 0), (0, 0), (0, 0)))  # the first latent frame is the input image, without a face

        def one_adapter(_, adapter: dict[str, jax.Array]) -> tuple[None, tuple[jax.Array, jax.Array]]:
            keys = call_module(self._adapter, self._gather_layer(adapter), _project_face_keys, tokens)
            key, value = (self._layout.constrain(array, TEXT_HEADS) for array in keys)
            return None, (key, value)

        key, value = jax.lax.scan(one_adapter, None, weights.stacks[ADAPTERS])[1]
        return FaceKeys(key=key, value=value)

    def _begin(self, weights: StackedWeights, latents: jax.Array, timestep: jax.Array, context: PosedContext):
        (hidden,), time = super()._begin(weights, latents, timestep, context)
        kernel, bias = weights.outer[f"{POSE}.weight"], weights.outer[f"{POSE}.bias"]
        patches = to_patches(context.pose.astype(kernel.dtype), self._patch)
        poses = patches @ kernel.reshape(kernel.shape[0], -1).T + bias
        before = self.num_tokens(latents.shape) - poses.shape[1]  # the number of tokens of the image
        around = (before, hidden.shape[1] - before - poses.shape[1])
        return (self._layout.constrain(hidden + jnp.pad(poses, ((0, 0), around, (0, 0))), TOKENS),), time

    def _after_layers(self, weights: StackedWeights, tokens: tuple[jax.Array], time: Any, context: PosedContext) -> jax.Array:
        """See `ClipTransformer`. Layers run in groups. A face adapter runs after the first layer of each group."""
        layers, run_layer, (hidden,) = self._layers(weights, context), self._layer_runner(time, context), tokens
        frames = context.pose.shape[2] // self._patch[0] + 1
        frame = jnp.arange(hidden.shape[1]) // (context.positions.num_tokens // frames)
        frame = jnp.minimum(frame, frames - 1)  # padding tokens count as tokens of the last frame

        def one_run(hidden: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
            first = number * self._every
            (hidden,) = run_layer((hidden,), layer_at(layers, first))
            adapter, key, value = layer_at((weights.stacks[ADAPTERS], context.face.key, context.face.value), number)
            key_frames = jnp.arange(key.shape[1]) // (key.shape[1] // frames)
            is_same_frame = frame[:, None] == key_frames
            own = self._gather_layer(adapter)
            attended = call_module(self._adapter, own, _attend_to_face, hidden, key, value, is_same_frame)
            hidden = self._layout.constrain(hidden + attended, TOKENS)

            def one_layer(hidden: jax.Array, index: jax.Array) -> tuple[jax.Array, None]:
                return run_layer((hidden,), layer_at(layers, index))[0], None

            return jax.lax.scan(one_layer, hidden, first + jnp.arange(1, self._every))[0], None

        return jax.lax.scan(one_run, hidden, jnp.arange(self._model.config.num_layers // self._every))[0]


def _motion_coefficients(encoder: WanAnimateMotionEncoder, faces: torch.Tensor) -> torch.Tensor:
    """Return the weights of the directions, [N, motion], as `WanAnimateMotionEncoder.forward` computes them."""
    hidden = encoder.conv_in(faces)
    for block in encoder.res_blocks:
        hidden = block(hidden)
    numbers = encoder.conv_out(hidden).squeeze(-1).squeeze(-1)
    for layer in encoder.motion_network:
        numbers = layer(numbers)
    return numbers


def _project_face_keys(adapter, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute keys and values [B, F * N, H, D] of face tokens [B, F, N, D], like `WanAnimateFaceBlockAttnProcessor`."""
    normed = adapter.pre_norm_kv(tokens).flatten(1, 2)
    key = adapter.norm_k(adapter.to_k(normed).unflatten(2, (adapter.heads, -1)))
    return key, adapter.to_v(normed).unflatten(2, (adapter.heads, -1))


def _attend_to_face(adapter, hidden: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Compute attention of tokens [B, S, D] to K face tokens. A token attends to the face tokens where `mask` [S, K] is true."""
    query = adapter.norm_q(adapter.to_q(adapter.pre_norm_q(hidden)).unflatten(2, (adapter.heads, -1)))
    query, key, value, mask = (as_array(array) for array in (query, key, value, mask))
    scores = jnp.einsum("bshd,bkhd->bhsk", query, key, preferred_element_type=jnp.float32) * query.shape[-1] ** -0.5
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
    attended = jnp.einsum("bhsk,bkhd->bshd", weights.astype(value.dtype), value)
    return adapter.to_out(torchax().interop.torch_view(attended.reshape(*attended.shape[:2], -1)))
