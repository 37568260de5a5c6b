"""The decoder of Wan 2.1's video autoencoder for TPUs: the layers that diffusers' module holds, in the order in which it runs
them, on arrays as `kernels.causal_conv` wants them, every chip a strip of columns.

One pass an array: each convolution also does the residual, the norm and the SiLU that follow it. Numerics are those of
`backend.vae` in bfloat16 but for the norms, which see float32 here. Wan 2.2's autoencoder is built otherwise and not served.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import (
    WanAttentionBlock,
    WanResample,
    WanResidualBlock,
    WanRMS_norm,
)
from jax.sharding import PartitionSpec as P

from backend.sharding import Layout
from kernels.causal_conv import Edges, Epilogue, arrange_weight, causal_conv, padded_channels, padded_rows, swap_rows_and_columns

KEPT_FRAMES = 2
SPATIAL_SCALE = 8
Caches = dict[int, jax.Array]
Weights = Mapping[str, jax.Array]


def place(layout: Layout, shapes: tuple[Any, Caches]) -> tuple[Any, Caches]:
    """Where the results of `decode` lie: pixels over space, caches in strips."""
    pixels, caches = shapes
    strips = Strips.of(layout, *(size // SPATIAL_SCALE for size in pixels.shape[3:]))
    sharding = layout.sharding(strips.spec)
    strips_of = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding) for name, leaf in caches.items()}
    return layout.describe_spread({"pixels": pixels})["pixels"], strips_of


def is_arranged(weights: Weights) -> bool:
    """Whether these are tensors as `arrange` leaves them."""
    return weights["decoder.conv_in.weight"].ndim == 2


def can_decode(config: Mapping[str, Any]) -> bool:
    """Whether a configuration is of the kind that this module runs."""
    is_plain = not config.get("is_residual") and config.get("patch_size") is None and not config.get("attn_scales")
    return is_plain and config["scale_factor_spatial"] == SPATIAL_SCALE


def arrange(vae: AutoencoderKLWan, weights: Weights) -> dict[str, jax.Array]:
    """The checkpoint's tensors, those of the decoder as its products want them: once a model, not once a frame."""
    arranged = dict(weights)
    for name, module in _modules(vae):
        if isinstance(module, WanRMS_norm):
            arranged[f"{name}.gamma"] = _vector(weights[f"{name}.gamma"])
        elif isinstance(module, torch.nn.Conv2d | torch.nn.Conv3d):
            arranged |= _arranged_conv(name, weights)
    return arranged


def _modules(vae: AutoencoderKLWan) -> Iterator[tuple[str, torch.nn.Module]]:
    yield "post_quant_conv", vae.post_quant_conv
    yield from vae.decoder.named_modules(prefix="decoder")


def _arranged_conv(name: str, weights: Weights) -> dict[str, jax.Array]:
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    weight = weight if weight.ndim == 5 else weight[:, :, None]
    if weight.shape[3] == 3:
        return {f"{name}.weight": arrange_weight(weight), f"{name}.bias": _vector(bias)}
    parts = _parts(name)
    matrices = jnp.moveaxis(weight[..., 0, 0], 2, 0)  # [T + 1, N, C]
    split = matrices.reshape(matrices.shape[0], parts, -1, matrices.shape[2])
    padding = [(0, 0), (0, 0)] + [(0, padded_channels(size) - size) for size in split.shape[2:]]
    biases = jnp.stack([_vector(part) for part in bias.reshape(parts, -1)])
    return {f"{name}.weight": jnp.pad(split, padding).transpose(0, 3, 1, 2), f"{name}.bias": biases}


def _parts(name: str) -> int:
    """How many arrays of the same width a matrix makes side by side: frames, or query, key and value."""
    return {"time_conv": 2, "to_qkv": 3}.get(name.rpartition(".")[2], 1)


def _vector(values: jax.Array) -> jax.Array:
    flat = values.reshape(-1).astype(jnp.float32)
    return jnp.pad(flat, (0, padded_channels(flat.shape[0]) - flat.shape[0]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strips:
    """How the picture is cut: columns over `axes` of the mesh. `turned`: the chips share out the height, because it divides
    and the width does not; then the height is what this module calls columns."""

    axes: tuple[str, ...]
    turned: bool

    @classmethod
    def of(cls, layout: Layout, height: int, width: int) -> Strips:
        """For latents of this size."""
        spec = layout.space(height, width)
        across, down = (_as_tuple(spec[place]) for place in (4, 3))
        return cls(axes=across or down, turned=bool(down))

    @property
    def spec(self) -> P:
        """[F, W, H, C]."""
        return P(None, self.axes or None, None, None)


def _as_tuple(axes: Any) -> tuple[str, ...]:
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)


def decode(
    vae: AutoencoderKLWan, weights: Weights, latents: jax.Array, caches: Caches | None, layout: Layout, interpret: bool = False
) -> tuple[jax.Array, Caches]:
    """Pixels [1, 3, F, height, width] in [-1, 1] of one latent frame [1, C, 1, H, W], not normalised, and the caches after it.

    `weights` as `arrange` leaves them; `caches` None for the first frame. F is 1 for that, 4 for all others.
    """
    strips = Strips.of(layout, *latents.shape[3:])
    frame = latents[0].transpose(1, 2, 3, 0) if strips.turned else latents[0].transpose(1, 3, 2, 0)
    rows = frame.shape[2]
    padding = ((0, 0), (0, 0), (0, padded_rows(rows) - rows), (0, padded_channels(frame.shape[3]) - frame.shape[3]))
    used = {name: _turned(name, weights[name]) if strips.turned else weights[name] for name in _used(weights)}
    widths = {name: module.gamma.numel() for name, module in _modules(vae) if isinstance(module, WanRMS_norm)}

    def one_chip(used: Weights, frame: jax.Array, caches: Caches | None) -> tuple[jax.Array, Caches]:
        walk = _Walk(used, widths, caches, axes=strips.axes, rows=rows, interpret=interpret)
        return walk.decode(vae, frame), walk.after

    run = jax.shard_map(
        one_chip, mesh=layout.mesh, in_specs=(P(), strips.spec, strips.spec), out_specs=strips.spec, check_vma=False
    )
    made, after = run(used, jnp.pad(frame, padding), caches)
    made = made[:, :, : rows * SPATIAL_SCALE, : vae.config.out_channels]
    pixels = made.transpose(3, 0, 1, 2) if strips.turned else made.transpose(3, 0, 2, 1)
    return pixels[None].clip(-1.0, 1.0), after


def _used(weights: Weights) -> list[str]:
    return [name for name in weights if name.startswith(("decoder.", "post_quant_conv."))]


def _turned(name: str, weight: jax.Array) -> jax.Array:
    """An arranged convolution with rows and columns in each other's place; all else as it is."""
    if weight.ndim != 2 or name.endswith(".bias"):
        return weight
    return swap_rows_and_columns(weight, frames=1 if ".resample." in name else 3)


class _Walk:
    """One chip's way through the decoder. `after` are the caches that it leaves, by the order of the convolutions."""

    def __init__(
        self, weights: Weights, widths: Mapping[str, int], before: Caches | None, *, axes: tuple[str, ...], rows: int,
        interpret: bool,
    ) -> None:  # fmt: skip
        self._weights, self._widths, self._before = weights, widths, before
        self._axes, self._rows, self._interpret = axes, rows, interpret
        self.after: Caches = {}

    def decode(self, vae: AutoencoderKLWan, frame: jax.Array) -> jax.Array:
        decoder = vae.decoder
        frame = self._product("post_quant_conv", frame)
        blocks = [
            ("decoder.mid_block.resnets.0", decoder.mid_block.resnets[0]),
            ("decoder.mid_block.attentions.0", decoder.mid_block.attentions[0]),
            ("decoder.mid_block.resnets.1", decoder.mid_block.resnets[1]),
        ]
        for index, block in enumerate(decoder.up_blocks):
            name = f"decoder.up_blocks.{index}"
            blocks += [(f"{name}.resnets.{place}", resnet) for place, resnet in enumerate(block.resnets)]
            blocks += [(f"{name}.upsamplers.0", block.upsamplers[0])] if block.upsamplers is not None else []
        norms = [self._first_norm(name, module) for name, module in blocks[1:]] + ["decoder.norm_out"]
        total, normalised = self._causal("decoder.conv_in", frame, self._norm_of(self._first_norm(*blocks[0])))
        for (name, module), following in zip(blocks, norms, strict=True):
            total, normalised = self._run(name, module, total, normalised, following)
        return self._causal("decoder.conv_out", normalised, Epilogue())[0]

    @staticmethod
    def _first_norm(name: str, module: Any) -> str | None:
        """The norm with SiLU that a block begins with, which the block before it does for it."""
        return f"{name}.norm1" if isinstance(module, WanResidualBlock) else None

    def _run(self, name: str, module: Any, total: jax.Array, normalised: jax.Array | None, following: str | None):
        if isinstance(module, WanResidualBlock):
            return self._residual(name, module, total, normalised, following)
        if isinstance(module, WanAttentionBlock):
            total = self._attend(name, total)
            return total, self._normalise(total, following)
        assert isinstance(module, WanResample)
        return self._resample(name, module, total, following)

    def _residual(self, name: str, block: WanResidualBlock, total: jax.Array, normalised: jax.Array, following: str | None):
        second = dataclasses.replace(self._norm_of(f"{name}.norm2"), keeps_sum=False)
        _, hidden = self._causal(f"{name}.conv1", normalised, second)
        shortcut = total if block.in_dim == block.out_dim else self._product(f"{name}.conv_shortcut", total)
        return self._causal(f"{name}.conv2", hidden, dataclasses.replace(self._norm_of(following), residual=shortcut))

    def _resample(self, name: str, module: WanResample, total: jax.Array, following: str | None):
        if module.mode == "upsample3d":
            total = self._more_frames(f"{name}.time_conv", total)
        made = self._convolve(f"{name}.resample.1", total, None, self._norm_of(following), doubles=True)
        self._rows *= 2
        return made

    def _more_frames(self, name: str, total: jax.Array) -> jax.Array:
        """Two frames for each, from it and the two before it; the first frame of a video stays one."""
        place = len(self.after)
        if self._before is None:
            self.after[place] = jnp.zeros((KEPT_FRAMES, *total.shape[1:]), total.dtype)
            return total
        seen = jnp.concatenate([self._before[place], total])
        self.after[place] = seen[-KEPT_FRAMES:]
        weight = self._weights[f"{name}.weight"]  # [3, C, 2, N]
        products = sum(
            jnp.einsum("fwhc,cpn->fpwhn", seen[tap : tap + len(total)], weight[tap], preferred_element_type=jnp.float32)
            for tap in range(weight.shape[0])
        )
        products += self._weights[f"{name}.bias"][None, :, None, None]
        made = products.reshape(-1, *products.shape[2:])
        return self._only_rows(made).astype(total.dtype)

    def _attend(self, name: str, total: jax.Array) -> jax.Array:
        """One head over all of a frame's pixels, each chip its own against everyone's."""
        hidden = self._normal(total, f"{name}.norm").astype(total.dtype)
        query, key, value = jnp.split(self._product(f"{name}.to_qkv", hidden), 3, axis=-1)
        key, value = (self._everyones(array) for array in (key, value))
        scores = jnp.einsum("fwhc,fvgc->fwhvg", query, key, preferred_element_type=jnp.float32)
        scores *= self._widths[f"{name}.norm"] ** -0.5
        is_real = jnp.arange(key.shape[2]) < self._rows
        shares = jax.nn.softmax(jnp.where(is_real, scores, -jnp.inf), axis=(3, 4)).astype(value.dtype)
        seen = jnp.einsum("fwhvg,fvgc->fwhc", shares, value, preferred_element_type=jnp.float32).astype(total.dtype)
        return total + self._product(f"{name}.proj", seen)

    def _everyones(self, strip: jax.Array) -> jax.Array:
        return jax.lax.all_gather(strip, self._axes, axis=1, tiled=True) if self._axes else strip

    def _causal(self, name: str, frames: jax.Array, epilogue: Epilogue) -> tuple[jax.Array | None, jax.Array | None]:
        """A convolution that sees two frames back. Before the first frame there is nothing, so that its share is left out."""
        place = len(self.after)
        if self._before is None:
            self.after[place] = jnp.concatenate([jnp.zeros_like(frames[:1]), frames])
            return self._convolve(name, frames, None, epilogue)
        before = self._before[place]
        kept = frames if len(frames) >= KEPT_FRAMES else jnp.concatenate([before, frames])
        self.after[place] = kept[-KEPT_FRAMES:]
        return self._convolve(name, frames, before, epilogue)

    def _convolve(self, name: str, frames: jax.Array, before: jax.Array | None, epilogue: Epilogue, *, doubles: bool = False):
        weight, depth = self._weights[f"{name}.weight"], 3 * frames.shape[3]
        seen = frames if before is None else jnp.concatenate([before[:, [0, -1]], frames[:, [0, -1]]])
        return causal_conv(
            frames, before, weight if before is not None else weight[-depth:], self._weights[f"{name}.bias"],
            self._edges(seen), epilogue, num_rows=self._rows, doubles=doubles, interpret=self._interpret,
        )  # fmt: skip

    def _edges(self, seen: jax.Array) -> Edges:
        """The neighbouring chips' nearest columns; zero at the picture's sides."""
        first, last = seen[:, :1], seen[:, -1:]
        chips = jax.lax.axis_size(self._axes) if self._axes else 1
        if chips == 1:
            return Edges(left=jnp.zeros_like(first), right=jnp.zeros_like(first))
        onward = [(chip, chip + 1) for chip in range(chips - 1)]
        back = [(chip + 1, chip) for chip in range(chips - 1)]
        return Edges(left=jax.lax.ppermute(last, self._axes, onward), right=jax.lax.ppermute(first, self._axes, back))

    def _norm_of(self, name: str | None) -> Epilogue:
        """The sum, and if a norm follows, its normalised form."""
        return Epilogue() if name is None else Epilogue(norm=self._weights[f"{name}.gamma"], norm_width=self._widths[name])

    def _product(self, name: str, frames: jax.Array) -> jax.Array:
        """A convolution over channels alone."""
        made = jnp.einsum("fwhc,cpn->fwhpn", frames, self._weights[f"{name}.weight"][0], preferred_element_type=jnp.float32)
        made = (made + self._weights[f"{name}.bias"]).reshape(*frames.shape[:3], -1)
        return self._only_rows(made).astype(frames.dtype)

    def _only_rows(self, frames: jax.Array) -> jax.Array:
        """Zero in the rows that pad the picture."""
        return jnp.where(jnp.arange(frames.shape[2])[:, None] < self._rows, frames, 0)

    def _normalise(self, total: jax.Array, name: str | None) -> jax.Array | None:
        """The norm with SiLU outside a convolution."""
        if name is None:
            return None
        return jax.nn.silu(self._normal(total, name)).astype(total.dtype)

    def _normal(self, total: jax.Array, name: str) -> jax.Array:
        values = total.astype(jnp.float32)
        length = jnp.linalg.norm(values, axis=-1, keepdims=True)
        return values * (self._widths[name] ** 0.5 / jnp.maximum(length, 1e-12)) * self._weights[f"{name}.gamma"]
