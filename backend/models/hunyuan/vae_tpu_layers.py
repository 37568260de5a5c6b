"""The layers of HunyuanVideo-1.5's video autoencoder on one TPU chip, see `backend.models.common.strip_layers`.
`backend.models.hunyuan.vae_tpu` arranges the weights."""

from collections.abc import Mapping, Sequence
from typing import cast

import jax
import jax.numpy as jnp
from diffusers import AutoencoderKLHunyuanVideo15
from diffusers.models.autoencoders.autoencoder_kl_hunyuanvideo15 import (
    HunyuanVideo15AttnBlock,
    HunyuanVideo15Downsample,
    HunyuanVideo15Upsample,
)

from backend.models.common.strip_layers import KEPT_FRAMES, Caches, Chip, Step, StripRunner, Weights
from backend.models.hunyuan.vae_stream import KEYS_AND_VALUES
from kernels.causal_conv import Epilogue, causal_conv, rms_norm
from kernels.causal_conv_tiling import padded_channels, padded_rows


def _list_steps(name: str, block: object, lists: Sequence[str]) -> list[Step]:
    return [
        Step(name=f"{name}.{kind}.{place}", module=module)
        for kind in lists
        for place, module in enumerate(getattr(block, kind) or ())
    ]


def _middle_steps(name: str, block: object) -> list[Step]:
    residuals, attentions = (_list_steps(name, block, [kind]) for kind in ("resnets", "attentions"))
    pairs = zip(attentions, residuals[1:], strict=True)
    return [residuals[0], *(step for pair in pairs for step in pair if step.module is not None)]


class LayerRunner(StripRunner):
    """See `StripRunner`. The name of a cache is the name of its layer.

    Args:
        before: caches from the previous latent frame. For the video's first latent frame, pass only the caches for keys and
            values, filled with zeros.
        padding: number of padding columns at the end of the last strip. Convolutions see only the first padding column, which
            repeats the border.
        seen: number of earlier latent frames, whose keys and values are cached."""

    def __init__(
        self,
        chip: Chip,
        weights: Weights,
        widths: Mapping[str, int],
        before: Caches,
        rows: int,
        padding: int,
        seen: jax.Array,
    ) -> None:
        super().__init__(chip, weights, widths, before, rows)
        self._padding = padding
        self._seen, self._is_first = seen, all(name.endswith(KEYS_AND_VALUES) for name in before)

    def decode(self, vae: AutoencoderKLHunyuanVideo15, latents: jax.Array) -> tuple[jax.Array, int]:
        """Decode a latent frame to pixels. Also return the number of channels without padding."""
        decoder = vae.decoder
        steps = _middle_steps("decoder.mid_block", decoder.mid_block)
        for index, block in enumerate(decoder.up_blocks):
            steps += _list_steps(f"decoder.up_blocks.{index}", block, ("resnets", "upsamplers"))
        repeated = _repeat_channels(latents, decoder.in_channels, decoder.repeat)
        total, normalised = self._convolve("decoder.conv_in", latents, self._make_epilogue(steps[0].first_norm, repeated))
        _, normalised = self._run_steps(steps, "decoder.norm_out", total, normalised)
        return self._convolve_sum("decoder.conv_out", normalised), decoder.out_channels

    def encode(self, vae: AutoencoderKLHunyuanVideo15, pixels: jax.Array) -> tuple[jax.Array, int]:
        """Encode pixels to a latent frame's moments. Also return the number of channels without padding."""
        encoder, steps = vae.encoder, []
        self._later_frames = vae.config.temporal_compression_ratio
        for index, block in enumerate(encoder.down_blocks):
            steps += _list_steps(f"encoder.down_blocks.{index}", block, ("resnets", "downsamplers"))
        steps += _middle_steps("encoder.mid_block", encoder.mid_block)
        total, normalised = self._convolve("encoder.conv_in", pixels, self._make_epilogue(steps[0].first_norm))
        total, normalised = self._run_steps(steps, "encoder.norm_out", total, normalised)
        mean = _grouped_mean([total], self._widths["encoder.norm_out"], encoder.out_channels)
        return self._convolve_sum("encoder.conv_out", normalised, Epilogue(residuals=(mean,))), encoder.out_channels

    def _sample(self, step: Step, total: jax.Array, following: str | None):
        kinds = {
            HunyuanVideo15AttnBlock: self._attend,
            HunyuanVideo15Upsample: self._upsample,
            HunyuanVideo15Downsample: self._downsample,
        }
        total = kinds[type(step.module)](step.name, step.module, total)
        return total, self._normalise(total, following)

    def _shortcut(self, step: Step, total: jax.Array) -> jax.Array:
        return total if step.module.conv_shortcut is None else self._apply_matrix(f"{step.name}.conv_shortcut", total)

    def _upsample(self, name: str, module: HunyuanVideo15Upsample, total: jax.Array) -> jax.Array:
        """Double height and width. Some layers also double the number of frames. These layers do not double the clip's first
        frame. They drop the second half of its channels instead."""
        packed, entered = module.conv.conv.out_channels, module.conv.conv.in_channels
        if module.add_temporal_upsample and self._is_first:
            hidden = self._convolve_sum(f"{name}.conv", total)
            self._later_frames *= 2
            halves = hidden[..., :packed].reshape(*hidden.shape[:3], 4, 2, packed // 8)[..., 0, :]
            added = _repeat_channels(total, entered, module.repeats // 2)[..., : packed // 2]
            return self._unpack(halves.reshape(added.shape) + added, packed // 2, 1)
        epilogue = Epilogue(residuals=(_repeat_channels(total, entered, module.repeats),))
        hidden = self._convolve_sum(f"{name}.conv", total, epilogue)
        return self._unpack(hidden, packed, 2 if module.add_temporal_upsample else 1)

    def _unpack(self, packed: jax.Array, channels: int, times: int) -> jax.Array:
        """Move groups of channels into rows, columns and frames. This doubles rows and columns, and multiplies frames by `times`.
        Rows are interleaved by an exact product with zeros and ones, because the matrix unit is faster than copies."""
        frames, columns, rows, _ = packed.shape
        parts = packed[..., :channels].reshape(frames, columns, rows, times, 2, 2, -1)
        parts = parts.swapaxes(4, 5) if self._chip.is_transposed else parts
        self._rows *= 2
        self._padding *= 2
        places = jnp.eye(padded_rows(self._rows), 2 * rows, dtype=packed.dtype).reshape(-1, rows, 2)
        ordered = jnp.einsum("yhb,fwhtbac->ftwayc", places, parts, preferred_element_type=packed.dtype)
        return _fit_padding(ordered.reshape(frames * times, 2 * columns, -1, parts.shape[6]), self._rows)

    def _downsample(self, name: str, module: HunyuanVideo15Downsample, total: jax.Array) -> jax.Array:
        """Halve height and width. Some layers also halve the number of frames. These layers join pairs of frames. The clip's
        first frame is joined with a copy of itself."""
        entered, made = module.conv.conv.in_channels, module.conv.conv.out_channels
        times = 2 if module.add_temporal_downsample and not self._is_first else 1
        hidden = self._convolve_sum(f"{name}.conv", total)
        parts = [part[..., :made] for part in self._split_strided(hidden, times)]
        if module.add_temporal_downsample:
            self._later_frames //= 2
            parts *= 2 // times
        packed = jnp.concatenate(parts, axis=-1)
        mean = _grouped_mean(self._split_strided(total, times), entered, packed.shape[3])
        self._rows //= 2
        self._padding //= 2
        return _fit_padding(packed, self._rows) + _fit_padding(mean, self._rows)

    def _split_strided(self, frames: jax.Array, times: int) -> list[jax.Array]:
        """Split `frames` into 4 arrays that have every second row and column. If `times` is 2, each array is split again into
        even and odd frames. The arrays are in the order in which diffusers joins them as channels."""
        orders = [(frame, row, column) for frame in range(times) for row in range(2) for column in range(2)]
        if self._chip.is_transposed:
            return [frames[frame::times, row::2, column::2] for frame, row, column in orders]
        return [frames[frame::times, column::2, row::2] for frame, row, column in orders]

    def _attend(self, name: str, module: HunyuanVideo15AttnBlock, total: jax.Array) -> jax.Array:
        """Apply attention with one head. Each pixel of the frame sees all pixels of this frame and of all earlier frames."""
        norm = self._norm_weight(f"{name}.norm")
        hidden = rms_norm(total.astype(jnp.float32), *norm).astype(total.dtype)
        query, *own = (self._apply_matrix(f"{name}.{kind}", hidden) for kind in ("to_q", *KEYS_AND_VALUES))
        places = [f"{name}.{kind}" for kind in KEYS_AND_VALUES]
        assert self._before is not None, "the first call has arrays for keys and values"
        kept = [
            jax.lax.dynamic_update_slice_in_dim(self._before[place], array, self._seen, axis=0)
            for place, array in zip(places, own, strict=True)
        ]
        self.after |= dict(zip(places, kept, strict=True))
        attended = self._attend_to_kept(query * norm[1] ** -0.5, *kept).astype(total.dtype)
        return total + self._apply_matrix(f"{name}.proj_out", attended)

    def _attend_to_kept(self, query: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
        """Compute the attention [1, W, H, C] float32 to the cached keys of all chips. An online softmax runs over the frames."""
        axes = self._chip.axes
        everyones = jax.lax.all_gather(query, axes, axis=1, tiled=True) if axes else query
        queries = everyones.reshape(-1, query.shape[3])
        is_real = jnp.broadcast_to(jnp.arange(keys.shape[2]) < self._rows, keys.shape[1:3])
        if self._padding:
            columns = keys.shape[1] - jnp.where(self._chip.is_last, self._padding, 0)
            is_real &= jnp.arange(keys.shape[1])[:, None] < columns
        is_real = is_real.reshape(-1)

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
        """Apply a convolution that sees two earlier frames. Padding repeats the clip's first frame and the border pixels."""
        if self._padding:  # copy the last column into the first padding column
            place = frames.shape[1] - self._padding
            column = jnp.where(self._chip.is_last, frames[:, place - 1], frames[:, place])
            frames = frames.at[:, place].set(column)
        if self._is_first:
            self.after[name] = jnp.repeat(frames, max(KEPT_FRAMES, self._later_frames), axis=0)
            before = jnp.repeat(frames, KEPT_FRAMES, axis=0)
        else:
            before = self._swap_cache(name, frames)
        return causal_conv(
            frames,
            before,
            self._weights[f"{name}.conv.weight"],
            self._weights[f"{name}.conv.bias"],
            self._make_edges(before, frames, repeats=True),
            epilogue,
            num_rows=self._rows,
            repeats_rows=True,
            interpret=self._chip.interpret,
        )

    def _apply_matrix(self, name: str, frames: jax.Array) -> jax.Array:
        product = jnp.einsum("fwhc,cn->fwhn", frames, self._weights[f"{name}.weight"], preferred_element_type=jnp.float32)
        return self._zero_padding_rows(product + self._weights[f"{name}.bias"]).astype(frames.dtype)


def _fit_padding(frames: jax.Array, rows: int) -> jax.Array:
    """Pad `frames` with zeros to numbers of rows and channels that the kernel supports. Cut off unneeded padding rows."""
    cut = frames[:, :, : padded_rows(rows)]
    missing = (padded_rows(rows) - cut.shape[2], padded_channels(cut.shape[3]) - cut.shape[3])
    return jnp.pad(cut, ((0, 0), (0, 0), (0, missing[0]), (0, missing[1]))) if any(missing) else cut


def _repeat_channels(frames: jax.Array, channels: int, times: int) -> jax.Array:
    """Repeat each of the first `channels` channels `times` times, side by side. Uses an exact product with zeros and ones,
    because moving lanes is slow on a TPU."""
    source, made = jnp.arange(frames.shape[3])[:, None], jnp.arange(padded_channels(channels * times))
    picked = (made // times == source) & (made < channels * times)
    return jnp.einsum("fwhc,cn->fwhn", frames, picked.astype(frames.dtype), preferred_element_type=frames.dtype)


def _grouped_mean(parts: Sequence[jax.Array], channels: int, made: int) -> jax.Array:
    """Join the first `channels` channels of all arrays in `parts`, and average groups of neighbouring joined channels. `made` is
    the number of groups. The result has one channel for each group, and padding channels."""
    size = channels * len(parts) // made
    source, places = jnp.arange(parts[0].shape[3])[:, None], jnp.arange(padded_channels(made))
    sums = [
        jnp.einsum("fwhc,cn->fwhn", part, picked.astype(part.dtype), preferred_element_type=jnp.float32)
        for index, part in enumerate(parts)
        for picked in [((index * channels + source) // size == places) & (source < channels)]
    ]
    return (cast(jax.Array, sum(sums)) / size).astype(parts[0].dtype)  # `sum` is an array, because `parts` is not empty
