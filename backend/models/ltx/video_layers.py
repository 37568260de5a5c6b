"""The layers of LTX-2's video autoencoder. Each chip computes one strip of the frames, from the first convolution to the last.
Arrays are [F, H, W, C]. A convolution over three frames is computed as a convolution over one frame with the channels of three
frames side by side. The TPU's compiler takes a tenth of the time for this form. Equal blocks run in a loop, so that they are
compiled once. Diffusers' modules provide the structure and the settings. The arithmetic is equal to diffusers', with norms in
float32."""

import dataclasses
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import torch

from backend.models.common.modules import module_parameters

Weights = Mapping[str, jax.Array]
NORM_EPS = 1e-8  # source: diffusers, PerChannelRMSNorm
TAPS = 3  # size of a convolution's kernel along frames, rows and columns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coder:
    """The encoder or the decoder on one chip, which computes a strip of the frames.

    Attributes:
        axes: the mesh axes over which frames are divided into strips. Without axes, every chip computes whole frames.
        side: the dimension that is divided, 1 for the height and 2 for the width.
        is_causal: true if a frame sees no later frames.
        reflects: true if the borders of frames are padded by reflection, false if they are padded with zeros."""

    axes: tuple[str, ...]
    side: int
    weights: Weights
    is_causal: bool
    reflects: bool

    def decode(self, decoder: torch.nn.Module, frames: jax.Array) -> jax.Array:
        """Decode a strip of latents [F, H, W, C] to pixels [8 F - 7, 32 H, 32 W, 3]."""
        frames = self._convolve("decoder.conv_in", frames)
        frames = self._residuals("decoder.mid_block.resnets", decoder.mid_block.resnets, frames)
        for place, block in enumerate(decoder.up_blocks):
            name = f"decoder.up_blocks.{place}"
            if block.conv_in is not None:
                frames = self._residual(module_parameters(self.weights, f"{name}.conv_in"), frames, block.conv_in)
            for index, upsampler in enumerate(block.upsamplers or ()):
                stride = upsampler.stride
                made = unpack_channels(self._convolve(f"{name}.upsamplers.{index}.conv", frames), stride)
                if upsampler.residual:
                    plain = unpack_channels(frames, stride)
                    made += jnp.tile(plain, made.shape[3] // plain.shape[3])
                frames = made[stride[0] - 1 :]  # without the frames before the video's first frame
            frames = self._residuals(f"{name}.resnets", block.resnets, frames)
        frames = self._convolve("decoder.conv_out", _norm_and_silu(frames))
        size = decoder.patch_size
        parts = frames.reshape(*frames.shape[:3], -1, decoder.patch_size_t, size, size)
        return _merge_blocks(parts.transpose(0, 4, 1, 6, 2, 5, 3))

    def encode(self, encoder: torch.nn.Module, pixels: jax.Array) -> jax.Array:
        """Encode a strip of pixels [8 F - 7, 32 H, 32 W, 3] to moments [F, H, W, C + 1]: means, and one log-variance."""
        parts = _split_blocks(pixels, (encoder.patch_size_t, encoder.patch_size, encoder.patch_size))
        parts = parts.transpose(0, 2, 4, 6, 1, 5, 3)
        frames = self._convolve("encoder.conv_in", parts.reshape(*parts.shape[:3], -1))
        for place, block in enumerate(encoder.down_blocks):
            name = f"encoder.down_blocks.{place}"
            frames = self._residuals(f"{name}.resnets", block.resnets, frames)
            for index, downsampler in enumerate(block.downsamplers or ()):
                stride = downsampler.stride
                # Repeat the first frame, so that the stride divides the number of frames.
                frames = jnp.concatenate([frames[: stride[0] - 1], frames])
                mean = _pack_channels(frames, stride)
                mean = mean.reshape(*mean.shape[:3], -1, downsampler.group_size)
                mean = mean.astype(jnp.float32).mean(-1).astype(frames.dtype)
                frames = _pack_channels(self._convolve(f"{name}.downsamplers.{index}.conv", frames), stride) + mean
        frames = self._residuals("encoder.mid_block.resnets", encoder.mid_block.resnets, frames)
        return self._convolve("encoder.conv_out", _norm_and_silu(frames))

    def _residuals(self, name: str, blocks: Iterable[torch.nn.Module], frames: jax.Array) -> jax.Array:
        """Run successive residual blocks, which all have the same structure."""
        modules = [module_parameters(self.weights, f"{name}.{place}") for place, _ in enumerate(blocks)]
        stacked = {
            part: jnp.stack([jnp.stack([one[f"conv{half}.conv.{part}"] for half in "12"]) for one in modules])
            for part in ("weight", "bias")
        }

        def convolved(hidden: jax.Array, own: Weights) -> tuple[jax.Array, None]:
            return self._product(own["weight"], own["bias"], _norm_and_silu(hidden)), None

        return jax.lax.scan(lambda now, own: (now + jax.lax.scan(convolved, now, own)[0], None), frames, stacked)[0]

    def _residual(self, own: Weights, frames: jax.Array, block: torch.nn.Module) -> jax.Array:
        """Run a residual block that changes the number of channels: norm, convolution, norm, convolution, plus shortcut."""
        hidden = self._product(own["conv1.conv.weight"], own["conv1.conv.bias"], _norm_and_silu(frames))
        hidden = self._product(own["conv2.conv.weight"], own["conv2.conv.bias"], _norm_and_silu(hidden))
        if block.norm3 is not None:
            plain = frames.astype(jnp.float32)
            plain = (plain - plain.mean(-1, keepdims=True)) * jax.lax.rsqrt(plain.var(-1, keepdims=True) + block.norm3.eps)
            frames = (plain * own["norm3.weight"] + own["norm3.bias"]).astype(frames.dtype)
            frames = frames @ own["conv_shortcut.weight"][:, :, 0, 0, 0].T + own["conv_shortcut.bias"]
        return hidden + frames

    def _convolve(self, name: str, frames: jax.Array) -> jax.Array:
        return self._product(self.weights[f"{name}.conv.weight"], self.weights[f"{name}.conv.bias"], frames)

    def _product(self, weight: jax.Array, bias: jax.Array, frames: jax.Array) -> jax.Array:
        """Apply a convolution with a weight [N, C, 3, 3, 3] and a bias. Padding in time repeats the first or last frame."""
        first, last = [frames[:1]] * (TAPS - 1 if self.is_causal else 1), [] if self.is_causal else [frames[-1:]]
        seen = self._add_border(stack_frames(jnp.concatenate([*first, frames, *last])))
        return convolve_frames(weight.transpose(3, 4, 2, 1, 0).reshape(TAPS, TAPS, -1, len(weight)), bias, seen)

    def _add_border(self, frames: jax.Array) -> jax.Array:
        """Add one row or column on each side: from the neighbouring chip's strip, or padding at the frames' borders."""
        mode = "reflect" if self.reflects else "constant"
        axes, side = self.axes, self.side
        chips = jax.lax.axis_size(axes) if axes else 1
        if chips == 1:
            return jnp.pad(frames, ((0, 0), (1, 1), (1, 1), (0, 0)), mode=mode)

        def line(place: int) -> jax.Array:
            return jax.lax.slice_in_dim(frames, place, place + 1, axis=side)

        size = frames.shape[side]
        before = jax.lax.ppermute(line(size - 1), axes, [(chip, chip + 1) for chip in range(chips - 1)])
        after = jax.lax.ppermute(line(0), axes, [(chip + 1, chip) for chip in range(chips - 1)])
        if self.reflects:
            place, mirrored = jax.lax.axis_index(axes), (line(1), line(size - 2)) if size > 1 else (after, before)
            before, after = jnp.where(place == 0, mirrored[0], before), jnp.where(place == chips - 1, mirrored[1], after)
        whole = jnp.concatenate([before, frames, after], axis=side)
        return jnp.pad(whole, [(1, 1) if place == 3 - side else (0, 0) for place in range(4)], mode=mode)


def stack_frames(frames: jax.Array) -> jax.Array:
    """Put the channels of three successive frames side by side: [F + 2, H, W, C] to [F, H, W, 3 C]."""
    return jnp.concatenate([frames[tap : len(frames) - TAPS + 1 + tap] for tap in range(TAPS)], axis=-1)


def convolve_frames(matrix: jax.Array, bias: jax.Array, pictures: jax.Array) -> jax.Array:
    """Convolve padded frames [F, H + 2, W + 2, C] with the kernel `matrix` [3, 3, C, N] to [F, H, W, N], and add `bias`."""
    order = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(pictures, matrix, (1, 1), "VALID", dimension_numbers=order) + bias


def unpack_channels(frames: jax.Array, stride: tuple[int, int, int]) -> jax.Array:
    """Move channels into frames, rows and columns: [F, H, W, C t h w] to [F t, H h, W w, C]. `stride` is (t, h, w)."""
    return _merge_blocks(frames.reshape(*frames.shape[:3], -1, *stride).transpose(0, 4, 1, 5, 2, 6, 3))


def _norm_and_silu(frames: jax.Array) -> jax.Array:
    plain = frames.astype(jnp.float32)
    return jax.nn.silu(plain * jax.lax.rsqrt((plain * plain).mean(-1, keepdims=True) + NORM_EPS)).astype(frames.dtype)


def _pack_channels(frames: jax.Array, stride: tuple[int, int, int]) -> jax.Array:
    """Move frames, rows and columns into channels: [F t, H h, W w, C] to [F, H, W, C t h w]. `stride` is (t, h, w)."""
    parts = _split_blocks(frames, stride).transpose(0, 2, 4, 6, 1, 3, 5)
    return parts.reshape(*parts.shape[:3], -1)


def _split_blocks(frames: jax.Array, stride: tuple[int, int, int]) -> jax.Array:
    """Split the first three axes of [F t, H h, W w, C], to [F, t, H, h, W, w, C]. `stride` is (t, h, w)."""
    sizes = (part for size, step in zip(frames.shape, stride) for part in (size // step, step))  # noqa: B905  not the channels
    return frames.reshape(*sizes, frames.shape[3])


def _merge_blocks(parts: jax.Array) -> jax.Array:
    """Merge pairs of axes of [F, t, H, h, W, w, C], to [F t, H h, W w, C]."""
    count, t, height, h, width, w, channels = parts.shape
    return parts.reshape(count * t, height * h, width * w, channels)
