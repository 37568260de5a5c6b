"""The layers of Wan's video autoencoders on one TPU chip. See `backend.models.common.strip_layers`.

Each block of Wan 2.2 has a shortcut: the block's resized input is added to its output.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import (
    AvgDown3D,
    DupUp3D,
    WanAttentionBlock,
    WanResample,
    WanResidualDownBlock,
    WanResidualUpBlock,
)

from backend.models.common.strip_layers import KEPT_FRAMES, Step, StripRunner
from kernels.causal_conv import Epilogue, causal_conv, rms_norm
from kernels.causal_conv_tiling import padded_channels

TEMPORAL_SCALE = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Step(Step):
    """One module of the network.

    If `is_entered` is true, the module's input is stored for the block's shortcut. If `shortcut` is not None, the shortcut's
    result is added to the module's result.
    """

    is_entered: bool = False
    shortcut: AvgDown3D | DupUp3D | None = None


def _block_steps(
    name: str, block: WanResidualUpBlock | WanResidualDownBlock, sampler: str, sampling: WanResample | None
) -> list[_Step]:
    steps = [_Step(name=f"{name}.resnets.{place}", module=resnet) for place, resnet in enumerate(block.resnets)]
    steps += [] if sampling is None else [_Step(name=f"{name}.{sampler}", module=sampling)]
    steps[0] = dataclasses.replace(steps[0], is_entered=True)
    steps[-1] = dataclasses.replace(steps[-1], shortcut=block.avg_shortcut)
    return steps


def _middle_steps(name: str, network: Any) -> list[_Step]:
    block = network.mid_block
    places = {"resnets.0": block.resnets[0], "attentions.0": block.attentions[0], "resnets.1": block.resnets[1]}
    return [_Step(name=f"{name}.mid_block.{place}", module=module) for place, module in places.items()]


class LayerRunner(StripRunner):
    """Runs the encoder or the decoder on one chip. The caches' keys are numbers, in the order in which the layers run."""

    _entered: jax.Array | None = None  # the input of the current block

    def decode(self, vae: AutoencoderKLWan, frame: jax.Array) -> tuple[jax.Array, int]:
        """Decode a latent frame to pixels or patches of pixels. Also returns the number of channels without padding."""
        decoder = vae.decoder
        steps = _middle_steps("decoder", decoder)
        for index, block in enumerate(decoder.up_blocks):
            name = f"decoder.up_blocks.{index}"
            if isinstance(block, WanResidualUpBlock):
                steps += _block_steps(name, block, "upsampler", block.upsampler)
            else:
                steps += [_Step(name=f"{name}.resnets.{place}", module=resnet) for place, resnet in enumerate(block.resnets)]
                steps += [_Step(name=f"{name}.upsamplers.0", module=module) for module in block.upsamplers or ()]
        frame = self._multiply_channels("post_quant_conv", frame)
        return self._run_network("decoder", frame, steps), vae.config.out_channels

    def encode(self, vae: AutoencoderKLWan, frames: jax.Array) -> tuple[jax.Array, int]:
        """Encode pixels or patches of pixels to a latent frame's moments. Also returns the number of channels without padding."""
        self._later_frames, steps = TEMPORAL_SCALE, []
        for index, block in enumerate(vae.encoder.down_blocks):
            name = f"encoder.down_blocks.{index}"
            is_residual = isinstance(block, WanResidualDownBlock)
            plain = [_Step(name=name, module=block)]
            steps += _block_steps(name, block, "downsampler", block.downsampler) if is_residual else plain
        steps += _middle_steps("encoder", vae.encoder)
        return self._multiply_channels("quant_conv", self._run_network("encoder", frames, steps)), 2 * vae.config.z_dim

    def _run_network(self, name: str, frames: jax.Array, steps: Sequence[_Step]) -> jax.Array:
        total, normalised = self._convolve(f"{name}.conv_in", frames, self._make_epilogue(steps[0].first_norm))
        _, normalised = self._run_steps(steps, f"{name}.norm_out", total, normalised)
        return self._convolve_sum(f"{name}.conv_out", normalised)

    def _run(self, step: _Step, total: jax.Array, normalised: jax.Array | None, following: str | None):
        self._entered = total if step.is_entered else self._entered
        return super()._run(step, total, normalised, following)

    def _shortcut(self, step: _Step, total: jax.Array) -> jax.Array:
        block = step.module
        added = total if block.in_dim == block.out_dim else self._multiply_channels(f"{step.name}.conv_shortcut", total)
        return added if step.shortcut is None else added + self._average_input(step.shortcut)

    def _sample(self, step: _Step, total: jax.Array, following: str | None):
        name, module = step.name, step.module
        if isinstance(module, WanAttentionBlock):
            # One head over all pixels of a frame. The queries are this chip's strip, the keys are all strips.
            hidden = rms_norm(total.astype(jnp.float32), *self._norm_weight(f"{name}.norm")).astype(total.dtype)
            query, key, value = jnp.split(self._multiply_channels(f"{name}.to_qkv", hidden), 3, axis=-1)
            if self._chip.axes:
                key, value = (jax.lax.all_gather(array, self._chip.axes, axis=1, tiled=True) for array in (key, value))
            scores = jnp.einsum("fwhc,fvgc->fwhvg", query, key, preferred_element_type=jnp.float32)
            scores *= self._widths[f"{name}.norm"] ** -0.5
            is_real = jnp.arange(key.shape[2]) < self._rows
            shares = jax.nn.softmax(jnp.where(is_real, scores, -jnp.inf), axis=(3, 4)).astype(value.dtype)
            attended = jnp.einsum("fwhvg,fvgc->fwhc", shares, value, preferred_element_type=jnp.float32).astype(total.dtype)
            total = total + self._multiply_channels(f"{name}.proj", attended)
            return total, self._normalise(total, following)
        if module.mode.startswith("down"):
            total = self._downsample(name, module, total)
            total = total if step.shortcut is None else total + self._average_input(step.shortcut)
            return total, self._normalise(total, following)
        if module.mode == "upsample3d":
            total = self._double_frames(f"{name}.time_conv", total)
        added = () if step.shortcut is None else self._repeat_input(step.shortcut)
        outputs = self._convolve_after(None, f"{name}.resample.1", total, self._make_epilogue(following, *added), doubles=True)
        self._rows *= 2
        return outputs

    def _repeat_input(self, shortcut: DupUp3D) -> tuple[jax.Array, jax.Array]:
        """Return the shortcut of a block that doubles rows and columns, as the two residuals of the convolution's `Epilogue`.

        The first residual is added to the upper row of each pair of new rows, the second to the lower row. If the block halves
        the channels, the video's upper row gets the input's channels 0, 2, 4, ..., and its lower row the channels 1, 3, 5, ...
        """
        entered = self._entered
        assert entered is not None, "a block's first step stores it"
        if shortcut.in_channels == shortcut.out_channels:
            return entered, entered
        assert shortcut.in_channels == 2 * shortcut.out_channels and shortcut.factor_t == 1
        channels = padded_channels(shortcut.out_channels)
        kinds = [
            _select_channels(entered, jnp.arange(entered.shape[3])[:, None] == 2 * jnp.arange(channels) + kind)
            for kind in range(2)
        ]
        if not self._chip.is_transposed:
            return kinds[0], kinds[1]
        # The columns of a transposed strip are rows of the video. Here the two new rows of the video are neighbouring columns.
        columns = jnp.stack(kinds, axis=2)
        columns = columns.reshape(columns.shape[0], -1, *columns.shape[3:])
        return columns, columns

    def _average_input(self, shortcut: AvgDown3D) -> jax.Array:
        """Return the shortcut of a block that halves rows and columns: the mean of each 2 x 2 pixels of the block's input.

        If the block also halves the number of frames, a new frame has the channels of a pair of frames in turn. A video's first
        frame counts as the second frame of a pair whose first frame is zero.
        """
        entered = self._entered
        assert entered is not None, "a block's first step stores it"
        if shortcut.factor == 1:
            return entered
        values = entered.astype(jnp.float32)
        means = cast(jax.Array, sum(values[:, column::2, row::2] for column in range(2) for row in range(2))) / 4
        means = means.astype(entered.dtype)
        if shortcut.factor_t == 1:
            return means
        channels = padded_channels(shortcut.out_channels)
        pairs = [(kind, means[place::2]) for kind, place in (((1, 0),) if len(means) == 1 else ((0, 0), (1, 1)))]
        placed = (
            _select_channels(part, 2 * jnp.arange(part.shape[3])[:, None] + kind == jnp.arange(channels)) for kind, part in pairs
        )
        return cast(jax.Array, sum(placed))

    def _downsample(self, name: str, module: WanResample, total: jax.Array) -> jax.Array:
        """Halve columns and rows, and also frames if the block downsamples time.

        The checkpoint's convolution has a stride of two and pads only right and bottom. Its result is the rows and columns 1, 3,
        5, ... of `causal_conv`.
        """
        total, _ = self._convolve_after(None, f"{name}.resample.1", total, Epilogue())
        total, self._rows = total[:, 1::2, 1::2], self._rows // 2
        if module.mode == "downsample2d":
            return total
        place = len(self.after)
        self.after[place] = total[-1:]
        if self._before is None:
            self._later_frames //= 2
            return total
        inputs = jnp.concatenate([self._before[place], total])
        weight = self._weights[f"{name}.time_conv.weight"]  # [frames of the kernel, input channels, 1, output channels]
        taps = [inputs[tap : tap + len(total) - 1 : 2] for tap in range(weight.shape[0])]
        products = sum(
            jnp.einsum("fwhc,cn->fwhn", tap, part[:, 0], preferred_element_type=jnp.float32)
            for tap, part in zip(taps, weight, strict=True)
        )
        return self._zero_padding_rows(products + self._weights[f"{name}.time_conv.bias"][0]).astype(total.dtype)

    def _double_frames(self, name: str, total: jax.Array) -> jax.Array:
        """Compute two new frames from each frame and the two frames before it. A video's first frame stays a single frame."""
        if self._before is None:
            self._exchange_frames(jnp.zeros_like(total))
            self._later_frames *= 2
            return total
        before = self._exchange_frames(total)
        assert before is not None, "every call after the first has a cache"
        inputs = jnp.concatenate([before[-KEPT_FRAMES:], total])
        weight = self._weights[f"{name}.weight"]  # [frames of the kernel, input channels, 2 new frames, output channels]
        products = sum(
            jnp.einsum("fwhc,cpn->fpwhn", inputs[tap : tap + len(total)], weight[tap], preferred_element_type=jnp.float32)
            for tap in range(weight.shape[0])
        )
        products += self._weights[f"{name}.bias"][None, :, None, None]
        doubled = products.reshape(-1, *products.shape[2:])
        return self._zero_padding_rows(doubled).astype(total.dtype)

    def _convolve(self, name: str, frames: jax.Array, epilogue: Epilogue) -> tuple[jax.Array | None, jax.Array | None]:
        """Run a convolution that sees two earlier frames. For a video's first frame, these are zero and left out."""
        return self._convolve_after(self._exchange_frames(frames), name, frames, epilogue)

    def _exchange_frames(self, frames: jax.Array) -> jax.Array | None:
        """Cache `frames` for the call with the next latent frame. Return the frames that the previous call cached.

        The first call returns None, and caches `frames` with zero frames before them.
        """
        place = len(self.after)
        if self._before is not None:
            return self._swap_cache(place, frames)
        missing = max(KEPT_FRAMES, self._later_frames) - 1
        self.after[place] = jnp.pad(frames, ((missing, 0), (0, 0), (0, 0), (0, 0)))
        return None

    def _convolve_after(self, before: jax.Array | None, name: str, frames: jax.Array, epilogue: Epilogue, doubles: bool = False):
        # The weight's second axis has entries for the earlier frames, then `depth` entries for the current frame. Without earlier
        # frames, only the entries for the current frame are used.
        weight, depth = self._weights[f"{name}.weight"], 3 * frames.shape[3]
        return causal_conv(
            frames,
            before,
            weight if before is not None else weight[:, -depth:],
            self._weights[f"{name}.bias"],
            self._make_edges(before, frames),
            epilogue,
            num_rows=self._rows,
            doubles=doubles,
            interpret=self._chip.interpret,
        )

    def _multiply_channels(self, name: str, frames: jax.Array) -> jax.Array:
        product = jnp.einsum("fwhc,cpn->fwhpn", frames, self._weights[f"{name}.weight"][0], preferred_element_type=jnp.float32)
        product = (product + self._weights[f"{name}.bias"]).reshape(*frames.shape[:3], -1)
        return self._zero_padding_rows(product).astype(frames.dtype)


def _select_channels(frames: jax.Array, picked: jax.Array) -> jax.Array:
    """Select channels of `frames` [F, W, H, C] by a matrix `picked` [C, N] of zeros and ones.

    Moving single channels is slow on a TPU.
    """
    selected = jnp.einsum("fwhc,cn->fwhn", frames, picked.astype(frames.dtype), preferred_element_type=jnp.float32)
    return selected.astype(frames.dtype)
