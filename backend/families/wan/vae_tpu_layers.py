"""The layers of the video autoencoders on one TPU chip: its strip of columns from the first convolution to the last, on
`kernels.causal_conv`.

Every function sees arrays [F, W, H, C] of the strip; how the picture is cut and how weights are arranged is
`backend.families.wan.vae_tpu`'s. Wan 2.2's blocks add their input, made larger or smaller, to their output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import (
    AvgDown3D,
    DupUp3D,
    WanAttentionBlock,
    WanResample,
    WanResidualBlock,
    WanResidualDownBlock,
    WanResidualUpBlock,
)

from kernels.causal_conv import Edges, Epilogue, causal_conv, norm_and_silu, rms_norm
from kernels.causal_conv_cut import padded_channels

KEPT_FRAMES = 2
TEMPORAL_SCALE = 4
Caches = dict[int, jax.Array]
Weights = Mapping[str, jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Step:
    """One module of the network. The input of a residual block's first module (`is_entered`) is kept for the `shortcut` of its
    last module, whose result is added to that module's."""

    name: str
    module: Any
    is_entered: bool = False
    shortcut: AvgDown3D | DupUp3D | None = None

    @property
    def first_norm(self) -> str | None:
        """The norm with SiLU at its beginning, which the step before it computes."""
        return f"{self.name}.norm1" if isinstance(self.module, WanResidualBlock) else None


def _decoder_steps(decoder: Any) -> list[_Step]:
    """Between the decoder's first convolution and its last."""
    steps = _middle("decoder", decoder)
    for index, block in enumerate(decoder.up_blocks):
        name = f"decoder.up_blocks.{index}"
        if isinstance(block, WanResidualUpBlock):
            steps += _block(name, block, {"upsampler": block.upsampler})
        else:
            steps += [_Step(name=f"{name}.resnets.{place}", module=resnet) for place, resnet in enumerate(block.resnets)]
            steps += [_Step(name=f"{name}.upsamplers.0", module=module) for module in block.upsamplers or ()]
    return steps


def _encoder_steps(encoder: Any) -> list[_Step]:
    """Between the encoder's first convolution and its last."""
    steps = []
    for index, block in enumerate(encoder.down_blocks):
        name = f"encoder.down_blocks.{index}"
        if isinstance(block, WanResidualDownBlock):
            steps += _block(name, block, {"downsampler": block.downsampler})
        else:
            steps.append(_Step(name=name, module=block))
    return steps + _middle("encoder", encoder)


def _block(name: str, block: WanResidualUpBlock | WanResidualDownBlock, sampler: Mapping[str, WanResample | None]) -> list[_Step]:
    modules = {f"resnets.{place}": resnet for place, resnet in enumerate(block.resnets)} | sampler
    steps = [_Step(name=f"{name}.{place}", module=module) for place, module in modules.items() if module is not None]
    steps[0] = dataclasses.replace(steps[0], is_entered=True)
    steps[-1] = dataclasses.replace(steps[-1], shortcut=block.avg_shortcut)
    return steps


def _middle(name: str, network: Any) -> list[_Step]:
    """The blocks between the two halves of the autoencoder."""
    block = network.mid_block
    places = {"resnets.0": block.resnets[0], "attentions.0": block.attentions[0], "resnets.1": block.resnets[1]}
    return [_Step(name=f"{name}.mid_block.{place}", module=module) for place, module in places.items()]


class LayerRunner:
    """Runs the encoder or the decoder on one chip. `after` are the caches that it leaves, in the convolutions' order."""

    def __init__(
        self,
        weights: Weights,
        widths: Mapping[str, int],
        before: Caches | None,
        *,
        axes: tuple[str, ...],
        rows: int,
        is_turned: bool,
        interpret: bool,
    ) -> None:
        self._weights, self._widths, self._before = weights, widths, before
        self._axes, self._rows, self._is_turned, self._interpret = axes, rows, is_turned, interpret
        self._later_frames = 1  # frames of a later latent frame here, where the first one has a single frame
        self._entered: jax.Array | None = None  # the input of the current residual block
        self.after: Caches = {}

    @property
    def rows(self) -> int:
        """The picture's rows in the latest array; the rows after them are zero."""
        return self._rows

    def decode(self, vae: AutoencoderKLWan, frame: jax.Array) -> tuple[jax.Array, int]:
        """Pixels, or patches of them, from a latent frame; how many of the channels are real."""
        pixels = self._through("decoder", self._product("post_quant_conv", frame), _decoder_steps(vae.decoder))
        return pixels, vae.config.out_channels

    def encode(self, vae: AutoencoderKLWan, frames: jax.Array) -> tuple[jax.Array, int]:
        """A latent frame's moments from pixels or patches of them; how many of the channels are real."""
        self._later_frames = TEMPORAL_SCALE
        return self._product("quant_conv", self._through("encoder", frames, _encoder_steps(vae.encoder))), 2 * vae.config.z_dim

    def _through(self, name: str, frames: jax.Array, steps: Sequence[_Step]) -> jax.Array:
        """The first convolution, the steps, the last convolution; each also computes the norm at the beginning of the next."""
        norms = [step.first_norm for step in steps] + [f"{name}.norm_out"]
        total, normalised = self._causal(f"{name}.conv_in", frames, self._norm_of(norms[0]))
        for step, following in zip(steps, norms[1:], strict=True):
            self._entered = total if step.is_entered else self._entered
            total, normalised = self._run(step, total, normalised, following)
        return self._causal(f"{name}.conv_out", normalised, Epilogue())[0]

    def _run(self, step: _Step, total: jax.Array, normalised: jax.Array | None, following: str | None):
        if isinstance(step.module, WanResidualBlock):
            return self._residual(step, total, normalised, following)
        if isinstance(step.module, WanAttentionBlock):
            total = self._attend(step.name, total)
            return total, self._normalise(total, following)
        assert isinstance(step.module, WanResample)
        return self._resample(step, total, following)

    def _residual(self, step: _Step, total: jax.Array, normalised: jax.Array, following: str | None):
        name, block = step.name, step.module
        second = dataclasses.replace(self._norm_of(f"{name}.norm2"), keeps_sum=False)
        _, hidden = self._causal(f"{name}.conv1", normalised, second)
        added = total if block.in_dim == block.out_dim else self._product(f"{name}.conv_shortcut", total)
        added = added if step.shortcut is None else added + self._averaged(step.shortcut)
        return self._causal(f"{name}.conv2", hidden, dataclasses.replace(self._norm_of(following), residuals=(added,)))

    def _resample(self, step: _Step, total: jax.Array, following: str | None):
        name, module = step.name, step.module
        if module.mode.startswith("down"):
            total = self._smaller(name, module, total)
            total = total if step.shortcut is None else total + self._averaged(step.shortcut)
            return total, self._normalise(total, following)
        if module.mode == "upsample3d":
            total = self._more_frames(f"{name}.time_conv", total)
        added = () if step.shortcut is None else self._repeated(step.shortcut)
        epilogue = dataclasses.replace(self._norm_of(following), residuals=added)
        outputs = self._convolve(f"{name}.resample.1", total, None, epilogue, doubles=True)
        self._rows *= 2
        return outputs

    def _repeated(self, shortcut: DupUp3D) -> tuple[jax.Array, jax.Array]:
        """The block's input, for the upper and the lower of the two rows that each row becomes; equal frames and columns are
        stored once. With half the channels, a pixel's four have two kinds: the upper two channels 0, 2, 4, ..."""
        entered = self._entered
        if shortcut.in_channels == shortcut.out_channels:
            return entered, entered
        assert shortcut.in_channels == 2 * shortcut.out_channels and shortcut.factor_t == 1
        channels = padded_channels(shortcut.out_channels)
        kinds = [_select(entered, jnp.arange(entered.shape[3])[:, None] == 2 * jnp.arange(channels) + kind) for kind in range(2)]
        if not self._is_turned:
            return tuple(kinds)
        columns = jnp.stack(kinds, axis=2)  # the picture lies on its side: its rows are columns here
        columns = columns.reshape(columns.shape[0], -1, *columns.shape[3:])
        return columns, columns

    def _averaged(self, shortcut: AvgDown3D) -> jax.Array:
        """The block's input, the mean of each four pixels; the channels of two frames become neighbours in one. Before
        the first frame there is nothing."""
        entered = self._entered
        if shortcut.factor == 1:
            return entered
        values = entered.astype(jnp.float32)
        means = sum(values[:, column::2, row::2] for column in range(2) for row in range(2)) / 4
        means = means.astype(entered.dtype)
        if shortcut.factor_t == 1:
            return means
        channels = padded_channels(shortcut.out_channels)
        pairs = [(kind, means[place::2]) for kind, place in (((1, 0),) if len(means) == 1 else ((0, 0), (1, 1)))]
        return sum(_select(part, 2 * jnp.arange(part.shape[3])[:, None] + kind == jnp.arange(channels)) for kind, part in pairs)

    def _smaller(self, name: str, module: WanResample, total: jax.Array) -> jax.Array:
        """Half as many columns and rows, and half as many frames if the block also shrinks time.

        A convolution with steps of two that pads the right and the bottom is every other pixel of one that pads all around.
        """
        total, _ = self._convolve(f"{name}.resample.1", total, None, Epilogue())
        total, self._rows = total[:, 1::2, 1::2], self._rows // 2
        if module.mode == "downsample2d":
            return total
        place = len(self.after)
        self.after[place] = total[-1:]
        if self._before is None:
            self._later_frames //= 2
            return total
        inputs = jnp.concatenate([self._before[place], total])
        weight = self._weights[f"{name}.time_conv.weight"]  # [3, C, 1, N]
        taps = [inputs[tap : tap + len(total) - 1 : 2] for tap in range(weight.shape[0])]
        products = sum(
            jnp.einsum("fwhc,cn->fwhn", tap, part[:, 0], preferred_element_type=jnp.float32)
            for tap, part in zip(taps, weight, strict=True)
        )
        return self._only_rows(products + self._weights[f"{name}.time_conv.bias"][0]).astype(total.dtype)

    def _more_frames(self, name: str, total: jax.Array) -> jax.Array:
        """Two frames for each, from it and the two before it; the first frame of a video stays one."""
        if self._before is None:
            self._exchange(jnp.zeros_like(total))
            self._later_frames *= 2
            return total
        inputs = jnp.concatenate([self._exchange(total)[-KEPT_FRAMES:], total])
        weight = self._weights[f"{name}.weight"]  # [3, C, 2, N]
        products = sum(
            jnp.einsum("fwhc,cpn->fpwhn", inputs[tap : tap + len(total)], weight[tap], preferred_element_type=jnp.float32)
            for tap in range(weight.shape[0])
        )
        products += self._weights[f"{name}.bias"][None, :, None, None]
        doubled = products.reshape(-1, *products.shape[2:])
        return self._only_rows(doubled).astype(total.dtype)

    def _attend(self, name: str, total: jax.Array) -> jax.Array:
        """One head over all of a frame's pixels: each chip's own queries, every chip's keys."""
        hidden = rms_norm(total.astype(jnp.float32), *self._norm(f"{name}.norm")).astype(total.dtype)
        query, key, value = jnp.split(self._product(f"{name}.to_qkv", hidden), 3, axis=-1)
        key, value = (self._everyones(array) for array in (key, value))
        scores = jnp.einsum("fwhc,fvgc->fwhvg", query, key, preferred_element_type=jnp.float32)
        scores *= self._widths[f"{name}.norm"] ** -0.5
        is_real = jnp.arange(key.shape[2]) < self._rows
        shares = jax.nn.softmax(jnp.where(is_real, scores, -jnp.inf), axis=(3, 4)).astype(value.dtype)
        attended = jnp.einsum("fwhvg,fvgc->fwhc", shares, value, preferred_element_type=jnp.float32).astype(total.dtype)
        return total + self._product(f"{name}.proj", attended)

    def _everyones(self, strip: jax.Array) -> jax.Array:
        return jax.lax.all_gather(strip, self._axes, axis=1, tiled=True) if self._axes else strip

    def _causal(self, name: str, frames: jax.Array, epilogue: Epilogue) -> tuple[jax.Array | None, jax.Array | None]:
        """A convolution that sees two frames back. Before the first frame there is nothing, so that part is left out."""
        return self._convolve(name, frames, self._exchange(frames), epilogue)

    def _exchange(self, frames: jax.Array) -> jax.Array | None:
        """The frames kept at this place by the last call, None in the first call. Keeps the present ones: at least two frames, as
        whole arrays, so that no frame is copied out of one."""
        place = len(self.after)
        if self._before is None:
            missing = max(KEPT_FRAMES, self._later_frames) - 1
            self.after[place] = jnp.pad(frames, ((missing, 0), (0, 0), (0, 0), (0, 0)))
            return None
        before = self._before[place]
        self.after[place] = frames if len(frames) >= KEPT_FRAMES else jnp.concatenate([before, frames])[-KEPT_FRAMES:]
        return before

    def _convolve(self, name: str, frames: jax.Array, before: jax.Array | None, epilogue: Epilogue, *, doubles: bool = False):
        weight, depth = self._weights[f"{name}.weight"], 3 * frames.shape[3]  # of one frame
        return causal_conv(
            frames,
            before,
            weight if before is not None else weight[:, -depth:],
            self._weights[f"{name}.bias"],
            self._edges(before, frames),
            epilogue,
            num_rows=self._rows,
            doubles=doubles,
            interpret=self._interpret,
        )

    def _edges(self, before: jax.Array | None, frames: jax.Array) -> Edges:
        """The neighbouring chips' nearest columns; zero at the picture's sides."""
        inputs = [frames] if before is None else [before[-KEPT_FRAMES:], frames]
        first, last = (jnp.concatenate([array[:, side] for array in inputs]) for side in (slice(0, 1), slice(-1, None)))
        chips = jax.lax.axis_size(self._axes) if self._axes else 1
        if chips == 1:
            return Edges(left=jnp.zeros_like(first), right=jnp.zeros_like(first))
        onward = [(chip, chip + 1) for chip in range(chips - 1)]
        back = [(chip + 1, chip) for chip in range(chips - 1)]
        return Edges(left=jax.lax.ppermute(last, self._axes, onward), right=jax.lax.ppermute(first, self._axes, back))

    def _norm_of(self, name: str | None) -> Epilogue:
        """The sum, and if a norm follows, its normalised form."""
        if name is None:
            return Epilogue()
        weight, width = self._norm(name)
        return Epilogue(norm=weight, norm_width=width)

    def _product(self, name: str, frames: jax.Array) -> jax.Array:
        """A convolution over channels alone."""
        product = jnp.einsum("fwhc,cpn->fwhpn", frames, self._weights[f"{name}.weight"][0], preferred_element_type=jnp.float32)
        product = (product + self._weights[f"{name}.bias"]).reshape(*frames.shape[:3], -1)
        return self._only_rows(product).astype(frames.dtype)

    def _only_rows(self, frames: jax.Array) -> jax.Array:
        """Zero in the rows that pad the picture."""
        return jnp.where(jnp.arange(frames.shape[2])[:, None] < self._rows, frames, 0)

    def _normalise(self, total: jax.Array, name: str | None) -> jax.Array | None:
        """The norm with SiLU outside a convolution."""
        if name is None:
            return None
        return norm_and_silu(total.astype(jnp.float32), *self._norm(name)).astype(total.dtype)

    def _norm(self, name: str) -> tuple[jax.Array, int]:
        return self._weights[f"{name}.gamma"], self._widths[name]


def _select(frames: jax.Array, picked: jax.Array) -> jax.Array:
    """[F, W, H, N] of the channels that `picked` [C, N] names, one at most for each: a product, because lanes move slowly."""
    selected = jnp.einsum("fwhc,cn->fwhn", frames, picked.astype(frames.dtype), preferred_element_type=jnp.float32)
    return selected.astype(frames.dtype)
