"""LTX-2's autoencoders for video and audio. Videos are decoded as a whole, because the video decoder also sees later frames."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from diffusers import AutoencoderKLLTX2Audio, AutoencoderKLLTX2Video
from diffusers.pipelines.ltx2 import vocoder as vocoders
from jax.sharding import PartitionSpec as P

from backend.checkpoints.json_files import Config
from backend.models.common.arithmetic import count_flops
from backend.models.common.flat_attention import as_array
from backend.models.common.modules import parameter_shapes
from backend.models.ltx.spec import MEL_SCALE
from backend.models.ltx.spectrum import log_mel
from backend.models.ltx.video_layers import Coder
from backend.models.ltx.vocoder import vocode, vocode_with_bandwidth_extension
from backend.runtime.mesh import Layout, replicated_spec
from backend.runtime.torch_modules import call_module, torchax
from backend.schemas.geometry import Geometry

Weights = Mapping[str, jax.Array]


class VideoAutoencoder:
    """Modules of the video autoencoder. Methods take the weights as an argument. They are pure, so that jax can compile them.
    Pixels are float32 in [-1, 1]. Latents are normalised, as the transformer sees them."""

    def __init__(self, config: Config, layout: Layout) -> None:
        with torch.device("meta"):
            self._vae = AutoencoderKLLTX2Video.from_config(dict(config)).eval()
        self._layout = layout
        self.latent_channels: int = self._vae.config.latent_channels

    def describe_weights(self, dtype: jnp.dtype) -> dict[str, jax.Array]:
        """Return the shapes and shardings of the checkpoint's weights."""
        return self._layout.describe_weights(parameter_shapes(self._vae, dtype), replicated_spec)

    def encode(self, weights: Weights, pixels: jax.Array) -> jax.Array:
        """Encode pixels [1, 3, 8 F - 7, height, width] to latents [1, C, F, H, W] float32."""
        height, width = (side // self._vae.config.spatial_compression_ratio for side in pixels.shape[3:])
        moments = self._run("encoder", Coder.encode, weights, pixels.astype(_dtype(weights)), height, width)
        return normalise_latents(weights, moments[:, : self.latent_channels], self._vae.config.scaling_factor)

    @jax.named_scope("decoder")
    def decode(self, weights: Weights, latents: jax.Array) -> jax.Array:
        """Decode a whole video's latents [1, C, F, H, W] to pixels [1, 3, 8 F - 7, height, width]."""
        own = denormalise_latents(weights, latents, self._vae.config.scaling_factor).astype(_dtype(weights))
        return self._run("decoder", Coder.decode, weights, own, *latents.shape[3:])

    def _run(
        self, part: str, way: Callable[..., jax.Array], weights: Weights, array: jax.Array, height: int, width: int
    ) -> jax.Array:
        divided, config = self._layout.spatial_partition(height, width), self._vae.config
        side = 1 if divided[3] else 2
        axes = divided[side + 2] or ()
        axes = (axes,) if isinstance(axes, str) else tuple(axes)
        is_causal, padding = (getattr(config, f"{part}_{entry}") for entry in ("causal", "spatial_padding_mode"))

        def one_chip(own: Weights, frames: jax.Array) -> jax.Array:
            coder = Coder(axes=axes, side=side, weights=own, is_causal=is_causal, reflects=padding == "reflect")
            return way(coder, getattr(self._vae, part), frames)

        own = {name: value for name, value in weights.items() if name.startswith(f"{part}.")}
        spec = P(*[(axes or None) if place == side else None for place in range(4)])
        mapped = jax.shard_map(one_chip, mesh=self._layout.mesh, in_specs=(P(), spec), out_specs=spec, check_vma=False)
        return mapped(own, array[0].transpose(1, 2, 3, 0)).transpose(3, 0, 1, 2)[None]

    def decoded_sharding(self, shapes: object) -> Any:
        """Return the sharding of `decode`'s result. The height or width of the pixels is divided over the chips."""
        return self._layout.describe_spread({"pixels": shapes})["pixels"]

    @functools.lru_cache(maxsize=32)  # noqa: B019  an autoencoder lives as long as its worker's model
    def decode_flops(self, geometry: Geometry) -> float:
        return count_flops(lambda: self._vae.decode(torch.empty(geometry.latent_shape(self.latent_channels))))

    @functools.lru_cache(maxsize=32)  # noqa: B019
    def encode_flops(self, geometry: Geometry, num_frames: int = 1) -> float:
        return count_flops(lambda: self._vae.encode(torch.empty(1, 3, num_frames, geometry.height, geometry.width)))


class SoundNetworks:
    """The audio autoencoder and the vocoder. They convert a spectrum to latents, and latents to a spectrum and to samples."""

    def __init__(self, config: Config, vocoder: Config, layout: Layout) -> None:
        with torch.device("meta"):
            self._vae = AutoencoderKLLTX2Audio.from_config(dict(config)).eval()
            self._vocoder = getattr(vocoders, vocoder["_class_name"]).from_config(dict(vocoder)).eval()
        self._layout = layout
        if layout.platform == "tpu":
            for module in self._vae.modules():
                if isinstance(module, torch.nn.Conv2d):
                    module.forward = functools.partial(_convolve, module)

    def describe_weights(self, part: str, dtype: jnp.dtype) -> dict[str, jax.Array]:
        """Return the shapes and shardings of the weights of "audio_vae" or "vocoder"."""
        module = self._vocoder if part == "vocoder" else self._vae
        return self._layout.describe_weights(parameter_shapes(module, dtype), replicated_spec)

    def spectrum(self, samples: np.ndarray, length: int) -> np.ndarray:
        """Compute the spectrum [1, channels, T, bins] float32 of samples [channels, N] on the host. The spectrum is as long as
        `length` audio latents. Shorter audio is padded with zeros at the end, longer audio is cut."""
        config, frames = self._vae.config, length * MEL_SCALE
        missing = max(0, frames * config.mel_hop_length - samples.shape[1])
        samples = np.pad(samples, ((0, 0), (0, missing)))
        return log_mel(samples, config.sample_rate, config.mel_hop_length, config.mel_bins)[None, :, :frames]

    def encode(self, weights: Weights, spectrum: jax.Array) -> jax.Array:
        """Encode a spectrum [1, channels, T, bins] to L normalised latents of M mel bins, [1, C, L, M] float32."""
        spectrum = spectrum.astype(weights["latents_std"].dtype)
        made = call_module(
            self._vae, weights, lambda vae, spectrum: vae.encode(spectrum, return_dict=False)[0].mode(), spectrum
        ).astype(jnp.float32)
        mean, std = _latent_statistics(weights, (1, made.shape[1], 1, made.shape[3]))
        return (made - mean) / std

    def decode(self, weights: Weights, latents: jax.Array) -> jax.Array:
        """Decode L latents of M mel bins, [1, C, L, M], to a spectrum [1, channels, T, bins]."""
        mean, std = _latent_statistics(weights, (1, latents.shape[1], 1, latents.shape[3]))
        plain = latents.astype(jnp.float32) * std + mean
        plain = plain.astype(weights["latents_std"].dtype)
        return call_module(self._vae, weights, lambda vae, latents: vae.decode(latents, return_dict=False)[0], plain)

    def vocode(self, vocoder: Weights, spectrum: jax.Array) -> jax.Array:
        """Convert a spectrum to samples [channels, N] float32 in [-1, 1]."""
        way = vocode_with_bandwidth_extension if isinstance(self._vocoder, vocoders.LTX2VocoderWithBWE) else vocode
        return way(vocoder, self._vocoder.config, spectrum[0]).astype(jnp.float32)


def _convolve(module: torch.nn.Conv2d, values: torch.Tensor) -> torch.Tensor:
    rows, columns = module.padding
    padded = torch.nn.functional.pad(values, (columns, columns, rows, rows))
    arrays = map(as_array, (padded, module.weight, module.bias))
    return torchax().interop.torch_view(convolve_by_product(*arrays, stride=module.stride))


def convolve_by_product(values: jax.Array, weight: jax.Array, bias: jax.Array, stride: tuple[int, int]) -> jax.Array:
    """Convolve values [B, C, H, W] with a weight [N, C, h, w], without padding, as one matrix product. The audio autoencoder has
    thirty convolutions of different sizes. The TPU's compiler needs several seconds for each convolution, and much less time for
    a matrix product."""
    images, (height, width) = values.transpose(0, 2, 3, 1), weight.shape[2:]
    ends = [size - kernel + 1 for size, kernel in zip(values.shape[2:], (height, width), strict=True)]
    seen = [
        images[:, row : row + ends[0] : stride[0], column : column + ends[1] : stride[1]]
        for row in range(height)
        for column in range(width)
    ]
    matrix = weight.transpose(2, 3, 1, 0).reshape(-1, len(weight))
    made = jnp.matmul(jnp.concatenate(seen, axis=-1), matrix, preferred_element_type=jnp.float32) + bias
    return made.astype(values.dtype).transpose(0, 3, 1, 2)


def normalise_latents(weights: Weights, latents: jax.Array, factor: float = 1.0) -> jax.Array:
    """Convert the video autoencoder's latents [1, C, F, H, W] to the latents that the transformer sees, float32."""
    mean, std = _latent_statistics(weights, (1, -1, 1, 1, 1))
    return (latents.astype(jnp.float32) - mean) * factor / std


def denormalise_latents(weights: Weights, latents: jax.Array, factor: float = 1.0) -> jax.Array:
    """Convert the transformer's latents to the video autoencoder's latents."""
    mean, std = _latent_statistics(weights, (1, -1, 1, 1, 1))
    return latents.astype(jnp.float32) * std / factor + mean


def _latent_statistics(weights: Weights, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    mean, std = (weights[f"latents_{name}"].astype(jnp.float32).reshape(shape) for name in ("mean", "std"))
    return mean, std


def _dtype(weights: Weights) -> jnp.dtype:
    return weights["decoder.conv_in.conv.weight"].dtype
