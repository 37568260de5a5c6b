"""Animate-1's two encoders of a face clip. The first computes a motion vector for each frame. The second computes face tokens.

Each latent frame has a few face tokens, computed from the motion vectors. Motion vectors and face tokens do not depend on the
timestep, so they are computed once per segment.

A motion vector is a weighted sum of 20 orthogonal directions: the columns of Q in the QR decomposition of a 512 x 20 weight.
The decomposition runs on the host in float32. Source: diffusers, transformer_wan_animate.py.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers.models.transformers.transformer_wan_animate import WanAnimateFaceEncoder, WanAnimateMotionEncoder

from backend.models.common.modules import select_prefix
from backend.runtime.torch_modules import call_module

MOTION, FACE = "motion_encoder.", "face_encoder."
SPAN = f"{MOTION}motion_synthesis_weight"
AT_ONCE = 8  # faces per batch; diffusers' `motion_encoder_batch_size`
BLUR = np.array([1, 3, 3, 1], np.float32)
_BLURRED = ("conv2", "conv_skip")


def motion_basis(xp: ModuleType, span: Any) -> Any:
    """Return the orthogonal directions of motion vectors, computed from the weight `span`.

    The result is [out, motion] float32: one column for each direction, one row for each number of a motion vector.
    """
    return xp.linalg.qr(span.astype(np.float32) + np.float32(1e-8))[0]


def encode_motion(
    encoder: WanAnimateMotionEncoder, weights: Mapping[str, jax.Array], faces: jax.Array, span: jax.Array
) -> jax.Array:
    """Encode N faces [N, 3, side, side] in [-1, 1] to motion vectors [N, out]. `span` is the result of `motion_basis`."""
    own = select_prefix(weights, MOTION) | _blur_kernels(encoder)
    numbers = call_module(encoder, own, _motion_coefficients, faces.astype(own["conv_in.weight"].dtype))
    motion = jnp.matmul(numbers.astype(jnp.float32), span.T, precision=jax.lax.Precision.HIGHEST)
    return motion.astype(numbers.dtype)


def _motion_coefficients(encoder: WanAnimateMotionEncoder, faces: torch.Tensor) -> torch.Tensor:
    """Return the weights of the directions, [N, motion], as `WanAnimateMotionEncoder.forward` computes them."""
    hidden = encoder.conv_in(faces)
    for block in encoder.res_blocks:
        hidden = block(hidden)
    numbers = encoder.conv_out(hidden).squeeze(-1).squeeze(-1)
    for layer in encoder.motion_network:
        numbers = layer(numbers)
    return numbers


def _blur_kernels(encoder: WanAnimateMotionEncoder) -> dict[str, jax.Array]:
    """Return the blur filters of the motion encoder by name. Checkpoints do not store them."""
    kernel = np.outer(BLUR, BLUR)
    kernel = jnp.asarray(kernel / kernel.sum())
    return {f"res_blocks.{number}.{name}.blur_kernel": kernel for number in range(len(encoder.res_blocks)) for name in _BLURRED}


def face_tokens(encoder: WanAnimateFaceEncoder, weights: Mapping[str, jax.Array], motion: jax.Array) -> jax.Array:
    """Encode motion vectors [B, frames, out] to N face tokens for each latent frame of a segment, [B, 1 + F, N, D].

    The first latent frame is the input image, and its face tokens are zero.
    """
    tokens = call_module(encoder, select_prefix(weights, FACE), _run_encoder, motion)
    return jnp.pad(tokens, ((0, 0), (1, 0), (0, 0), (0, 0)))


def _run_encoder(encoder: WanAnimateFaceEncoder, motion: torch.Tensor) -> torch.Tensor:
    return encoder(motion)
