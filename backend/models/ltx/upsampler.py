"""LTX-2's latent upsampler. It doubles the latents' size between the steps at half size and the refining steps at full size. The
arithmetic is equal to diffusers' class, for which the TPU's compiler needs more than five minutes. Two changes shorten
compilation, as in `video_layers`. A convolution over three frames runs as a convolution over one frame with three times the
channels, and equal blocks run in a loop."""

import jax
import jax.numpy as jnp
import torch
from diffusers.pipelines.ltx2.latent_upsampler import LTX2LatentUpsamplerModel

from backend.checkpoints.json_files import Config
from backend.models.common.modules import Encoder, module_parameters, network_settings
from backend.models.ltx.autoencoders import denormalise_latents, normalise_latents
from backend.models.ltx.video_layers import TAPS, Weights, convolve_frames, stack_frames, unpack_channels

NUM_GROUPS, NORM_EPS = 32, 1e-5  # source: diffusers, LTX2LatentUpsamplerModel; torch.nn.GroupNorm
STAGES = ("res_blocks", "post_upsample_res_blocks")  # names of the block lists before and after the size is doubled


class LatentUpsampler(Encoder):
    """The modules of the upsampler, replicated on all chips. Methods take the weights as an argument."""

    def __init__(self, config: Config, scaling_factor: float) -> None:
        self._factor = scaling_factor
        with torch.device("meta"):
            self._model = LTX2LatentUpsamplerModel.from_config(network_settings(config)).eval()

    def enlarge(self, weights: Weights, vae: Weights, latents: jax.Array) -> jax.Array:
        """Enlarge the transformer's latents [1, C, F, H, W] to [1, C, F, 2 H, 2 W] float32."""
        dtype = weights["final_conv.weight"].dtype
        frames = denormalise_latents(vae, latents, self._factor).astype(dtype)[0].transpose(1, 2, 3, 0)
        frames = jax.nn.silu(
            _norm(module_parameters(weights, "initial_norm"), _convolve(module_parameters(weights, "initial_conv"), frames))
        )
        before, after = STAGES
        frames = self._residuals(weights, before, frames)
        place = "upsampler.conv" if "upsampler.conv.weight" in weights else "upsampler.0"
        frames = unpack_channels(_convolve(module_parameters(weights, place), frames), (1, 2, 2))
        frames = _convolve(module_parameters(weights, "final_conv"), self._residuals(weights, after, frames))
        return normalise_latents(vae, frames.transpose(3, 0, 1, 2)[None], self._factor)

    def _residuals(self, weights: Weights, name: str, frames: jax.Array) -> jax.Array:
        """Run the blocks of the stage `name`, see `STAGES`."""
        modules = [module_parameters(weights, f"{name}.{place}") for place, _ in enumerate(getattr(self._model, name))]
        stacked = {
            f"{part}.{leaf}": jnp.stack([jnp.stack([one[f"{part}{half}.{leaf}"] for half in "12"]) for one in modules])
            for part in ("conv", "norm")
            for leaf in ("weight", "bias")
        }

        def block(frames: jax.Array, own: Weights) -> tuple[jax.Array, None]:
            def convolved(hidden: jax.Array, half: tuple[Weights, jax.Array]) -> tuple[jax.Array, None]:
                own, is_second = half
                hidden = _norm(module_parameters(own, "norm"), _convolve(module_parameters(own, "conv"), hidden))
                return jax.nn.silu(hidden + is_second * frames), None

            return jax.lax.scan(convolved, frames, (own, jnp.array([0, 1], frames.dtype)))[0], None

        return jax.lax.scan(block, frames, stacked)[0]


def _convolve(own: Weights, frames: jax.Array) -> jax.Array:
    """Convolve frames [F, H, W, C], padded with zeros. The weight is [N, C, 3, 3], or [N, C, 3, 3, 3] for three frames."""
    weight, room = own["weight"], ((1, 1), (1, 1), (0, 0))
    if weight.ndim == 4:
        return convolve_frames(weight.transpose(2, 3, 1, 0), own["bias"], jnp.pad(frames, ((0, 0), *room)))
    matrix = weight.transpose(3, 4, 2, 1, 0).reshape(TAPS, TAPS, -1, len(weight))
    return convolve_frames(matrix, own["bias"], stack_frames(jnp.pad(frames, ((1, 1), *room))))


def _norm(own: Weights, frames: jax.Array) -> jax.Array:
    groups = frames.astype(jnp.float32).reshape(*frames.shape[:3], NUM_GROUPS, -1)
    mean = groups.mean((0, 1, 2, 4), keepdims=True)
    groups = (groups - mean) * jax.lax.rsqrt(jnp.square(groups - mean).mean((0, 1, 2, 4), keepdims=True) + NORM_EPS)
    return (groups.reshape(frames.shape) * own["weight"] + own["bias"]).astype(frames.dtype)
