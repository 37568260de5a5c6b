"""HunyuanVideo-1.5's video autoencoder for one latent frame: diffusers' layers with explicit caches. Diffusers runs a whole clip
at once. There, a convolution sees two earlier frames, and the first frame is repeated before the clip. The attention in the
middle block sees every pixel of its own frame and of all earlier frames. Layers that change the number of frames treat the first
frame separately. Therefore the cache of a convolution has the two latest frames of its input. The cache of the attention has all
earlier keys and values, in arrays for the whole clip."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import torch
from diffusers import AutoencoderKLHunyuanVideo15
from torch.nn import functional

from backend.runtime.torch_modules import torchax

CACHE_FRAMES = 2
KEYS_AND_VALUES = ("to_k", "to_v")
FRAMES_SEEN = "frames_seen"
"""The name of the cache that counts the latent frames with cached keys and values."""
Caches = dict[str, torch.Tensor]


class FrameRunner:
    """Runs the encoder or the decoder for one latent frame. `before` are the caches from the previous latent frame, by name of
    the layer. For the first latent frame, `before` has only `FRAMES_SEEN` with the value 0, and arrays of zeros for keys and
    values. `after` are the new caches."""

    def __init__(self, before: Mapping[str, torch.Tensor]) -> None:
        self._before = before
        self._is_first = all(name == FRAMES_SEEN or name.endswith(KEYS_AND_VALUES) for name in before)
        self.after: Caches = {}

    def decode(self, vae: AutoencoderKLHunyuanVideo15, latents: torch.Tensor) -> torch.Tensor:
        """Decode latents [1, C, 1, H, W] to pixels [1, 3, 1 or 4, height, width]."""
        decoder = vae.decoder
        hidden = self._convolve("decoder.conv_in", decoder.conv_in, latents) + latents.repeat_interleave(decoder.repeat, dim=1)
        hidden = self._run_middle("decoder.mid_block", decoder.mid_block, hidden)
        for index, block in enumerate(decoder.up_blocks):
            name = f"decoder.up_blocks.{index}"
            hidden = self._residuals(name, block, hidden)
            for place, layer in enumerate(block.upsamplers or ()):
                # Double height and width. Some layers also double the number of frames. These layers do not double the clip's
                # first frame. They drop the second half of its channels instead.
                entered, repeats = hidden, layer.repeats
                hidden = self._convolve(f"{name}.upsamplers.{place}.conv", layer.conv, entered)
                times = 2 if layer.add_temporal_upsample and not self._is_first else 1
                spread = layer._dcae_upsample_rearrange(hidden, r1=times)
                if layer.add_temporal_upsample and self._is_first:
                    spread, repeats = spread[:, : spread.shape[1] // 2], repeats // 2
                hidden = spread + layer._dcae_upsample_rearrange(entered.repeat_interleave(repeats, dim=1), r1=times)
        return self._convolve("decoder.conv_out", decoder.conv_out, decoder.conv_act(decoder.norm_out(hidden)))

    def encode(self, vae: AutoencoderKLHunyuanVideo15, pixels: torch.Tensor) -> torch.Tensor:
        """Encode pixels [1, 3, 1 or 4, height, width] to the moments [1, 2 C, 1, H, W] of the posterior."""
        encoder = vae.encoder
        hidden = self._convolve("encoder.conv_in", encoder.conv_in, pixels)
        for index, block in enumerate(encoder.down_blocks):
            name = f"encoder.down_blocks.{index}"
            hidden = self._residuals(name, block, hidden)
            for place, layer in enumerate(block.downsamplers or ()):
                # Halve height and width. Some layers also halve the number of frames. These layers join pairs of frames. The
                # clip's first frame is joined with a copy of itself.
                times = 2 if layer.add_temporal_downsample and not self._is_first else 1
                convolved = self._convolve(f"{name}.downsamplers.{place}.conv", layer.conv, hidden)
                packed = layer._dcae_downsample_rearrange(convolved, r1=times)
                if layer.add_temporal_downsample and self._is_first:
                    packed = torch.cat([packed, packed], dim=1)
                hidden = packed + _grouped_mean(layer._dcae_downsample_rearrange(hidden, r1=times), packed.shape[1])
        hidden = self._run_middle("encoder.mid_block", encoder.mid_block, hidden)
        moments = self._convolve("encoder.conv_out", encoder.conv_out, encoder.conv_act(encoder.norm_out(hidden)))
        return moments + _grouped_mean(hidden, moments.shape[1])

    def _run_middle(self, name: str, block: Any, hidden: torch.Tensor) -> torch.Tensor:
        hidden = self._residual(f"{name}.resnets.0", block.resnets[0], hidden)
        for place, layer in enumerate(block.attentions):
            if layer is not None:  # one head; each pixel of the frame sees all pixels of this frame and of all earlier frames
                normalised, seen = layer.norm(hidden), self._before[FRAMES_SEEN]
                caches = [f"{name}.attentions.{place}.{kind}" for kind in KEYS_AND_VALUES]
                own = [layer.to_q(normalised), layer.to_k(normalised), layer.to_v(normalised)]
                call_jax = torchax().interop.call_jax
                attended, *kept = call_jax(_attend_causally, *own, *(self._before[cache] for cache in caches), seen)
                self.after |= dict(zip(caches, kept, strict=True)) | {FRAMES_SEEN: seen + 1}
                hidden = layer.proj_out(attended) + hidden
            hidden = self._residual(f"{name}.resnets.{place + 1}", block.resnets[place + 1], hidden)
        return hidden

    def _residuals(self, name: str, block: Any, hidden: torch.Tensor) -> torch.Tensor:
        for place, layer in enumerate(block.resnets):
            hidden = self._residual(f"{name}.resnets.{place}", layer, hidden)
        return hidden

    def _residual(self, name: str, layer: Any, entered: torch.Tensor) -> torch.Tensor:
        hidden = self._convolve(f"{name}.conv1", layer.conv1, layer.nonlinearity(layer.norm1(entered)))
        hidden = self._convolve(f"{name}.conv2", layer.conv2, layer.nonlinearity(layer.norm2(hidden)))
        return hidden + (entered if layer.conv_shortcut is None else layer.conv_shortcut(entered))

    def _convolve(self, name: str, layer: Any, frames: torch.Tensor) -> torch.Tensor:
        before = frames[:, :, :1].expand(-1, -1, CACHE_FRAMES, -1, -1) if self._is_first else self._before[name]
        seen = torch.cat([before, frames], dim=2)
        self.after[name] = seen[:, :, -CACHE_FRAMES:]
        return layer.conv(functional.pad(seen, (1, 1, 1, 1, 0, 0), mode=layer.pad_mode))


def _attend_causally(
    query: jax.Array, key: jax.Array, value: jax.Array, keys: jax.Array, values: jax.Array, seen: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the attention of one frame, [1, C, 1, H, W], and the new cached keys and values. The caches `keys` and `values` [1,
    C, capacity, H, W] are filled for `seen` earlier frames. The frame's own `key` and `value` are written at index `seen`."""
    keys, values = (jax.lax.dynamic_update_slice_in_dim(kept, own, seen, axis=2) for kept, own in ((keys, key), (values, value)))
    scores = jnp.einsum("bcfhw,bcgyx->bfhwgyx", query, keys, preferred_element_type=jnp.float32) * query.shape[1] ** -0.5
    is_seen = (jnp.arange(keys.shape[2]) <= seen)[:, None, None]
    shares = jax.nn.softmax(jnp.where(is_seen, scores, -jnp.inf), axis=(4, 5, 6)).astype(values.dtype)
    return jnp.einsum("bfhwgyx,bcgyx->bcfhw", shares, values), keys, values


def _grouped_mean(frames: torch.Tensor, channels: int) -> torch.Tensor:
    """Reduce [1, C, F, H, W] to `channels` channels, each the mean of C / `channels` neighbouring channels."""
    return frames.reshape(frames.shape[0], channels, -1, *frames.shape[2:]).mean(dim=2)
