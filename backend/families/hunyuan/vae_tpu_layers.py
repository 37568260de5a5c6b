"""The layers of HunyuanVideo-1.5's video autoencoder on one TPU chip: its strip of columns from the first convolution to the
last, on `kernels.causal_conv`.

Every function sees arrays [F, W, H, C] of the strip, channels and rows padded with zeros; how the picture is cut and how weights
are arranged is `backend.families.hunyuan.vae_tpu`'s. A picture that lies on its side has its rows as columns here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from diffusers import AutoencoderKLHunyuanVideo15
from diffusers.models.autoencoders.autoencoder_kl_hunyuanvideo15 import (
    HunyuanVideo15AttnBlock,
    HunyuanVideo15Downsample,
    HunyuanVideo15ResnetBlock,
    HunyuanVideo15Upsample,
)

from backend.families.hunyuan.vae_stream import KEYS_AND_VALUES
from kernels.causal_conv import Edges, Epilogue, causal_conv, norm_and_silu, rms_norm
from kernels.causal_conv_cut import padded_channels, padded_rows

KEPT_FRAMES = 2
Caches = dict[str, jax.Array]
Weights = Mapping[str, jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """One chip's part of the work: the mesh's `axes` over which the strips lie, and how the picture lies in them."""

    axes: tuple[str, ...]
    is_turned: bool
    interpret: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Norm:
    """An RMS norm with SiLU."""

    name: str
    width: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Step:
    """One module of the network."""

    name: str
    module: Any

    @property
    def first_norm(self) -> _Norm | None:
        """The norm with SiLU at its beginning, which the step before it computes."""
        if not isinstance(self.module, HunyuanVideo15ResnetBlock):
            return None
        return _norm(f"{self.name}.norm1", self.module.norm1)


def _norm(name: str, module: Any) -> _Norm:
    return _Norm(name=name, width=module.gamma.numel())


def _steps(name: str, block: Any, lists: Sequence[str]) -> list[_Step]:
    """The modules of a block, one of its lists after another."""
    return [
        _Step(name=f"{name}.{kind}.{place}", module=module)
        for kind in lists
        for place, module in enumerate(getattr(block, kind) or ())
    ]


def _middle(name: str, block: Any) -> list[_Step]:
    """The first residual block, then attention and residual block in turn."""
    residuals, attentions = (_steps(name, block, [kind]) for kind in ("resnets", "attentions"))
    pairs = zip(attentions, residuals[1:], strict=True)
    return [residuals[0], *(step for pair in pairs for step in pair if step.module is not None)]


class LayerRunner:
    """Runs the encoder or the decoder on one chip. `after` are the caches that it leaves, by the name of the layer.

    Before the first frame `before` holds nothing but the room for keys and values; `seen` counts the latent frames in there.
    """

    def __init__(self, chip: Chip, weights: Weights, before: Caches, seen: jax.Array, rows: int) -> None:
        self._chip, self._weights, self._before, self._seen, self._rows = chip, weights, before, seen, rows
        self._is_first = all(name.endswith(KEYS_AND_VALUES) for name in before)
        self._later_frames = 1  # frames of a later latent frame here, where the first one has a single frame
        self.after: Caches = {}

    @property
    def rows(self) -> int:
        """The picture's rows in the latest array; the rows after them are zero."""
        return self._rows

    def decode(self, vae: AutoencoderKLHunyuanVideo15, latents: jax.Array) -> tuple[jax.Array, int]:
        """Pixels of a latent frame; how many of the channels are real."""
        decoder = vae.decoder
        steps = _middle("decoder.mid_block", decoder.mid_block)
        for index, block in enumerate(decoder.up_blocks):
            steps += _steps(f"decoder.up_blocks.{index}", block, ("resnets", "upsamplers"))
        repeated = _repeated(latents, decoder.in_channels, decoder.repeat)
        total, normalised = self._convolve("decoder.conv_in", latents, self._epilogue(steps[0].first_norm, repeated))
        _, normalised = self._through(steps, _norm("decoder.norm_out", decoder.norm_out), total, normalised)
        return self._convolve("decoder.conv_out", normalised, Epilogue())[0], decoder.out_channels

    def encode(self, vae: AutoencoderKLHunyuanVideo15, pixels: jax.Array) -> tuple[jax.Array, int]:
        """A latent frame's moments from its pixels; how many of the channels are real."""
        encoder, steps = vae.encoder, []
        self._later_frames = vae.config.temporal_compression_ratio
        for index, block in enumerate(encoder.down_blocks):
            steps += _steps(f"encoder.down_blocks.{index}", block, ("resnets", "downsamplers"))
        steps += _middle("encoder.mid_block", encoder.mid_block)
        total, normalised = self._convolve("encoder.conv_in", pixels, self._epilogue(steps[0].first_norm))
        last = _norm("encoder.norm_out", encoder.norm_out)
        total, normalised = self._through(steps, last, total, normalised)
        mean = _grouped_mean([total], last.width, encoder.out_channels)
        return self._convolve("encoder.conv_out", normalised, Epilogue(residuals=(mean,)))[0], encoder.out_channels

    def _through(self, steps: Sequence[_Step], last: _Norm, total: jax.Array, normalised: jax.Array | None):
        """The steps; each also computes the norm at the beginning of the next."""
        followings = [*(step.first_norm for step in steps[1:]), last]
        for step, following in zip(steps, followings, strict=True):
            total, normalised = self._run(step, total, normalised, following)
        return total, normalised

    def _run(self, step: _Step, total: jax.Array, normalised: jax.Array | None, following: _Norm | None):
        if isinstance(step.module, HunyuanVideo15ResnetBlock):
            return self._residual(step.name, step.module, total, normalised, following)
        kinds = {
            HunyuanVideo15AttnBlock: self._attend,
            HunyuanVideo15Upsample: self._stretch,
            HunyuanVideo15Downsample: self._shrink,
        }
        total = kinds[type(step.module)](step.name, step.module, total)
        return total, self._normalise(total, following)

    def _residual(self, name: str, block: Any, total: jax.Array, normalised: jax.Array, following: _Norm | None):
        second = dataclasses.replace(self._epilogue(_norm(f"{name}.norm2", block.norm2)), keeps_sum=False)
        _, hidden = self._convolve(f"{name}.conv1", normalised, second)
        added = total if block.conv_shortcut is None else self._product(f"{name}.conv_shortcut", total)
        return self._convolve(f"{name}.conv2", hidden, self._epilogue(following, added))

    def _stretch(self, name: str, module: HunyuanVideo15Upsample, total: jax.Array) -> jax.Array:
        """Twice as high and wide, and twice as many frames if the layer stretches time; the clip's first frame stays one, made of
        every second group of channels."""
        packed, entered = module.conv.conv.out_channels, module.conv.conv.in_channels
        if module.add_temporal_upsample and self._is_first:
            hidden, _ = self._convolve(f"{name}.conv", total, Epilogue())
            self._later_frames *= 2
            halves = hidden[..., :packed].reshape(*hidden.shape[:3], 4, 2, packed // 8)[..., 0, :]
            added = _repeated(total, entered, module.repeats // 2)[..., : packed // 2]
            return self._unpacked(halves.reshape(added.shape) + added, packed // 2, 1)
        epilogue = Epilogue(residuals=(_repeated(total, entered, module.repeats),))
        hidden, _ = self._convolve(f"{name}.conv", total, epilogue)
        return self._unpacked(hidden, packed, 2 if module.add_temporal_upsample else 1)

    def _unpacked(self, packed: jax.Array, channels: int, times: int) -> jax.Array:
        """Groups of the first `channels` as `times` as many frames, and twice as many rows and columns. The rows interleave by a
        product with zeros and ones, exact, because the matrix unit moves every second row faster than copies do."""
        frames, columns, rows, _ = packed.shape
        parts = packed[..., :channels].reshape(frames, columns, rows, times, 2, 2, -1)
        parts = parts.swapaxes(4, 5) if self._chip.is_turned else parts
        self._rows *= 2
        places = jnp.eye(padded_rows(self._rows), 2 * rows, dtype=packed.dtype).reshape(-1, rows, 2)
        ordered = jnp.einsum("yhb,fwhtbac->ftwayc", places, parts, preferred_element_type=packed.dtype)
        return _padded(ordered.reshape(frames * times, 2 * columns, -1, parts.shape[6]), self._rows)

    def _shrink(self, name: str, module: HunyuanVideo15Downsample, total: jax.Array) -> jax.Array:
        """Half as high and wide, and half as many frames if the layer shrinks time; the clip's first frame stays one and fills
        the channels twice."""
        entered, made = module.conv.conv.in_channels, module.conv.conv.out_channels
        times = 2 if module.add_temporal_downsample and not self._is_first else 1
        hidden, _ = self._convolve(f"{name}.conv", total, Epilogue())
        parts = [part[..., :made] for part in self._parts(hidden, times)]
        if module.add_temporal_downsample:
            self._later_frames //= 2
            parts *= 2 // times
        packed = jnp.concatenate(parts, axis=-1)
        mean = _grouped_mean(self._parts(total, times), entered, packed.shape[3])
        self._rows //= 2
        return _padded(packed, self._rows) + _padded(mean, self._rows)

    def _parts(self, frames: jax.Array, times: int) -> list[jax.Array]:
        """Every second row and column, and every second frame if `times` is 2, in diffusers' order of channels."""
        orders = [(frame, row, column) for frame in range(times) for row in range(2) for column in range(2)]
        if self._chip.is_turned:
            return [frames[frame::times, row::2, column::2] for frame, row, column in orders]
        return [frames[frame::times, column::2, row::2] for frame, row, column in orders]

    def _attend(self, name: str, module: HunyuanVideo15AttnBlock, total: jax.Array) -> jax.Array:
        """One head; the frame's pixels see those of all frames until now. Each chip answers all queries by its own keys."""
        norm = _norm(f"{name}.norm", module.norm)
        hidden = rms_norm(total.astype(jnp.float32), self._weights[f"{norm.name}.gamma"], norm.width).astype(total.dtype)
        query, *own = (self._product(f"{name}.{kind}", hidden) for kind in ("to_q", *KEYS_AND_VALUES))
        places = [f"{name}.{kind}" for kind in KEYS_AND_VALUES]
        kept = [
            jax.lax.dynamic_update_slice_in_dim(self._before[place], array, self._seen, axis=0)
            for place, array in zip(places, own, strict=True)
        ]
        self.after |= dict(zip(places, kept, strict=True))
        attended = self._attended(query * norm.width**-0.5, *kept).astype(total.dtype)
        return total + self._product(f"{name}.proj_out", attended)

    def _attended(self, query: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        """[1, W, H, C] float32: softmax over the keys of all chips, frame by frame until `seen`, in running sums."""
        axes = self._chip.axes
        everyones = jax.lax.all_gather(query, axes, axis=1, tiled=True) if axes else query
        queries = everyones.reshape(-1, query.shape[3])
        is_real = jnp.broadcast_to(jnp.arange(keys.shape[2]) < self._rows, keys.shape[1:3]).reshape(-1)

        def add_frame(frame: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            largest, count, total = sums
            key, value = (kept[frame].reshape(-1, kept.shape[3]) for kept in (keys, values))
            scores = jnp.einsum("qc,kc->qk", queries, key, preferred_element_type=jnp.float32)
            scores = jnp.where(is_real, scores, -jnp.inf)
            limit = jnp.maximum(largest, scores.max(axis=1))
            shares, rest = jnp.exp(scores - limit[:, None]), jnp.exp(largest - limit)
            added = jnp.einsum("qk,kc->qc", shares.astype(value.dtype), value, preferred_element_type=jnp.float32)
            return limit, rest * count + shares.sum(axis=1), rest[:, None] * total + added

        start = jnp.full(len(queries), -jnp.inf), jnp.zeros(len(queries)), jnp.zeros(queries.shape, jnp.float32)
        largest, count, total = jax.lax.fori_loop(0, self._seen + 1, add_frame, start)
        if not axes:
            return (total / count[:, None]).reshape(query.shape)
        rest = jnp.exp(largest - jax.lax.pmax(largest, axes))
        total = (rest[:, None] * total / jax.lax.psum(rest * count, axes)[:, None]).reshape(everyones.shape)
        return jax.lax.psum_scatter(total, axes, scatter_dimension=1, tiled=True)

    def _convolve(self, name: str, frames: jax.Array, epilogue: Epilogue) -> tuple[jax.Array | None, jax.Array | None]:
        """A convolution that sees two frames back; beyond its ends the clip's first frame and the picture's border repeat."""
        before = self._exchange(name, frames)
        return causal_conv(
            frames,
            before,
            self._weights[f"{name}.conv.weight"],
            self._weights[f"{name}.conv.bias"],
            self._edges(before, frames),
            epilogue,
            num_rows=self._rows,
            repeats_rows=True,
            interpret=self._chip.interpret,
        )

    def _exchange(self, name: str, frames: jax.Array) -> jax.Array:
        """The frames kept at this place by the last call. Keeps the present ones: at least two frames, as whole arrays, so that
        no frame is copied out of one."""
        if self._is_first:
            self.after[name] = jnp.repeat(frames, max(KEPT_FRAMES, self._later_frames), axis=0)
            return jnp.repeat(frames, KEPT_FRAMES, axis=0)
        before = self._before[name]
        self.after[name] = frames if len(frames) >= KEPT_FRAMES else jnp.concatenate([before, frames])[-KEPT_FRAMES:]
        return before

    def _edges(self, before: jax.Array, frames: jax.Array) -> Edges:
        """The neighbouring chips' nearest columns; at the picture's sides its own."""
        inputs = [before[-KEPT_FRAMES:], frames]
        first, last = (jnp.concatenate([array[:, side] for array in inputs]) for side in (slice(0, 1), slice(-1, None)))
        axes = self._chip.axes
        chips = jax.lax.axis_size(axes) if axes else 1
        if chips == 1:
            return Edges(left=first, right=last)
        onward = [(chip, chip + 1) for chip in range(chips - 1)]
        back = [(chip + 1, chip) for chip in range(chips - 1)]
        place = jax.lax.axis_index(axes)
        left = jnp.where(place == 0, first, jax.lax.ppermute(last, axes, onward))
        return Edges(left=left, right=jnp.where(place == chips - 1, last, jax.lax.ppermute(first, axes, back)))

    def _epilogue(self, norm: _Norm | None, *residuals: jax.Array) -> Epilogue:
        """The sum, and if a norm follows, its normalised form."""
        if norm is None:
            return Epilogue(residuals=residuals)
        return Epilogue(residuals=residuals, norm=self._weights[f"{norm.name}.gamma"], norm_width=norm.width)

    def _product(self, name: str, frames: jax.Array) -> jax.Array:
        """A convolution over channels alone."""
        product = jnp.einsum("fwhc,cn->fwhn", frames, self._weights[f"{name}.weight"], preferred_element_type=jnp.float32)
        product += self._weights[f"{name}.bias"]
        is_real = jnp.arange(frames.shape[2])[:, None] < self._rows
        return jnp.where(is_real, product, 0).astype(frames.dtype)

    def _normalise(self, total: jax.Array, norm: _Norm | None) -> jax.Array | None:
        """The norm with SiLU outside a convolution."""
        if norm is None:
            return None
        return norm_and_silu(total.astype(jnp.float32), self._weights[f"{norm.name}.gamma"], norm.width).astype(total.dtype)


def _padded(frames: jax.Array, rows: int) -> jax.Array:
    """The frames with as many rows and channels as arrays of so many rows have; what is cut off is zero."""
    cut = frames[:, :, : padded_rows(rows)]
    missing = (padded_rows(rows) - cut.shape[2], padded_channels(cut.shape[3]) - cut.shape[3])
    return jnp.pad(cut, ((0, 0), (0, 0), (0, missing[0]), (0, missing[1]))) if any(missing) else cut


def _repeated(frames: jax.Array, channels: int, times: int) -> jax.Array:
    """Each of the first `channels` several times: a product with ones, exact, because lanes move slowly."""
    source, made = jnp.arange(frames.shape[3])[:, None], jnp.arange(padded_channels(channels * times))
    picked = (made // times == source) & (made < channels * times)
    return jnp.einsum("fwhc,cn->fwhn", frames, picked.astype(frames.dtype), preferred_element_type=frames.dtype)


def _grouped_mean(parts: Sequence[jax.Array], channels: int, made: int) -> jax.Array:
    """So many channels, each the mean of neighbouring ones in the first `channels` of all parts side by side."""
    size = channels * len(parts) // made
    source, places = jnp.arange(parts[0].shape[3])[:, None], jnp.arange(padded_channels(made))
    sums = [
        jnp.einsum("fwhc,cn->fwhn", part, picked.astype(part.dtype), preferred_element_type=jnp.float32)
        for index, part in enumerate(parts)
        for picked in [((index * channels + source) // size == places) & (source < channels)]
    ]
    return (sum(sums) / size).astype(parts[0].dtype)
