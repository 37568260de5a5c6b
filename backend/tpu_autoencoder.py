"""Wan 2.1's video autoencoder for TPUs: the layers that diffusers' module holds, in the order in which it runs them, on arrays as
`kernels.causal_conv` wants them, every chip a strip of columns.

One pass an array: each convolution also does the residual, the norm and the SiLU that follow it. Numerics are those of
`backend.vae` in bfloat16 but for the norms, which see float32 here. Wan 2.2's autoencoder is built otherwise and not served.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
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
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from backend.sharding import Layout
from kernels.causal_conv import Edges, Epilogue, arrange_weight, causal_conv, padded_channels, padded_rows, swap_rows_and_columns

KEPT_FRAMES = 2
SPATIAL_SCALE = 8
Caches = dict[int, jax.Array]
Weights = Mapping[str, jax.Array]


def place_caches(layout: Layout, size: Sequence[int], caches: Caches) -> Caches:
    """Where the caches of latents of this size (height, width) lie."""
    sharding = layout.sharding(Strips.of(layout, *size).spec)
    return {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding) for name, leaf in caches.items()}


def is_arranged(weights: Weights) -> bool:
    """Whether these are tensors as `arrange` leaves them."""
    return weights["decoder.conv_in.weight"].ndim == 2


def can_run(config: Mapping[str, Any]) -> bool:
    """Whether a configuration is of the kind that this module runs."""
    is_plain = not config.get("is_residual") and config.get("patch_size") is None and not config.get("attn_scales")
    return is_plain and config["scale_factor_spatial"] == SPATIAL_SCALE


def arrange(vae: AutoencoderKLWan, weights: Weights) -> dict[str, jax.Array]:
    """The checkpoint's tensors as the products want them: once a model, not once a frame."""
    arranged = dict(weights)
    for name, module in vae.named_modules():
        if isinstance(module, WanRMS_norm):
            arranged[f"{name}.gamma"] = _vector(weights[f"{name}.gamma"])
        elif isinstance(module, torch.nn.Conv2d | torch.nn.Conv3d):
            arranged |= _arranged_conv(name, weights)
    return arranged


def _arranged_conv(name: str, weights: Weights) -> dict[str, jax.Array]:
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    weight = weight if weight.ndim == 5 else weight[:, :, None]
    if weight.shape[3] == 3:
        return {f"{name}.weight": arrange_weight(weight), f"{name}.bias": _vector(bias)}
    parts = 3 if name.endswith("to_qkv") else max(1, weight.shape[0] // weight.shape[1]) if name.endswith("time_conv") else 1
    matrices = jnp.moveaxis(weight[..., 0, 0], 2, 0)  # [T + 1, N, C]
    split = matrices.reshape(matrices.shape[0], parts, -1, matrices.shape[2])
    padding = [(0, 0), (0, 0)] + [(0, padded_channels(size) - size) for size in split.shape[2:]]
    # side by side: the query, the key and the value, or the two frames that a decoder makes of one
    biases = jnp.stack([_vector(part) for part in bias.reshape(parts, -1)])
    return {f"{name}.weight": jnp.pad(split, padding).transpose(0, 3, 1, 2), f"{name}.bias": biases}


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
    size = latents.shape[3:]
    plan = _Plan(vae=vae, strips=Strips.of(layout, *size), size=size, mesh=layout.mesh, interpret=interpret)
    made, after = plan.run(_Walk.decode, weights, latents, caches, shrinks=1)
    return plan.leave(made, vae.config.out_channels, SPATIAL_SCALE).clip(-1.0, 1.0), after


def encode(
    vae: AutoencoderKLWan, weights: Weights, pixels: jax.Array, caches: Caches | None, layout: Layout, interpret: bool = False
) -> tuple[jax.Array, Caches]:
    """Moments [1, 2 C, 1, H, W] of one latent frame's posterior, and the caches after it.

    `pixels` [1, 3, F, height, width] in [-1, 1]; F is 1 for the first latent frame, with caches None, and 4 for all others.
    """
    size = tuple(side // SPATIAL_SCALE for side in pixels.shape[3:])
    plan = _Plan(vae=vae, strips=Strips.of(layout, *size), size=size, mesh=layout.mesh, interpret=interpret)
    made, after = plan.run(_Walk.encode, weights, pixels, caches, shrinks=SPATIAL_SCALE)
    return plan.leave(made, 2 * vae.config.z_dim, 1), after


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Plan:
    """How one latent frame of this `size` (height, width of the latents) goes through the network."""

    vae: AutoencoderKLWan
    strips: Strips
    size: tuple[int, int]
    mesh: Mesh
    interpret: bool

    @property
    def rows(self) -> int:
        """Of the latents, as this module calls them."""
        return self.size[1] if self.strips.turned else self.size[0]

    def run(self, way: Callable, weights: Weights, array: jax.Array, caches: Caches | None, shrinks: int):
        """`way` through the layers on every chip; `array` [1, C, F, ...] is `shrinks` times as large as the latents."""
        frames = array[0].transpose(1, 2, 3, 0) if self.strips.turned else array[0].transpose(1, 3, 2, 0)
        rows, channels = shrinks * self.rows, frames.shape[3]
        missing = shrinks * padded_rows(self.rows) - rows
        frames = jnp.pad(frames, ((0, 0), (0, 0), (0, missing), (0, padded_channels(channels) - channels)))
        own = {name: _turned(name, value) if self.strips.turned else value for name, value in weights.items()}
        widths = {name: module.gamma.numel() for name, module in self.vae.named_modules() if isinstance(module, WanRMS_norm)}

        def one_chip(own: Weights, frames: jax.Array, caches: Caches | None) -> tuple[jax.Array, Caches]:
            walk = _Walk(own, widths, caches, axes=self.strips.axes, rows=rows, interpret=self.interpret)
            return way(walk, self.vae, frames), walk.after

        spec = self.strips.spec
        mapped = jax.shard_map(one_chip, mesh=self.mesh, in_specs=(P(), spec, spec), out_specs=spec, check_vma=False)
        return mapped(own, frames, caches)

    def leave(self, frames: jax.Array, channels: int, grows: int) -> jax.Array:
        """[1, C, F, ...] of frames that are `grows` times as large as the latents, without the padding."""
        frames = frames[:, :, : grows * self.rows, :channels]
        return (frames.transpose(3, 0, 1, 2) if self.strips.turned else frames.transpose(3, 0, 2, 1))[None]


def _turned(name: str, weight: jax.Array) -> jax.Array:
    """An arranged convolution with rows and columns in each other's place; all else as it is."""
    if weight.ndim != 2 or name.endswith(".bias"):
        return weight
    return swap_rows_and_columns(weight, frames=1 if ".resample." in name else 3)


def _middle(name: str, network: Any) -> list[tuple[str, Any]]:
    """The blocks between the two halves of the autoencoder."""
    block = network.mid_block
    places = [("resnets.0", block.resnets[0]), ("attentions.0", block.attentions[0]), ("resnets.1", block.resnets[1])]
    return [(f"{name}.mid_block.{place}", module) for place, module in places]


class _Walk:
    """One chip's way through the encoder or the decoder. `after` are the caches that it leaves, in the convolutions' order."""

    def __init__(
        self, weights: Weights, widths: Mapping[str, int], before: Caches | None, *, axes: tuple[str, ...], rows: int,
        interpret: bool,
    ) -> None:  # fmt: skip
        self._weights, self._widths, self._before = weights, widths, before
        self._axes, self._rows, self._interpret = axes, rows, interpret
        self.after: Caches = {}

    def decode(self, vae: AutoencoderKLWan, frame: jax.Array) -> jax.Array:
        """[F, W, H, C] of pixels from a latent frame."""
        blocks = _middle("decoder", vae.decoder)
        for index, block in enumerate(vae.decoder.up_blocks):
            name = f"decoder.up_blocks.{index}"
            blocks += [(f"{name}.resnets.{place}", resnet) for place, resnet in enumerate(block.resnets)]
            blocks += [(f"{name}.upsamplers.0", block.upsamplers[0])] if block.upsamplers is not None else []
        return self._through("decoder", self._product("post_quant_conv", frame), blocks)

    def encode(self, vae: AutoencoderKLWan, frames: jax.Array) -> jax.Array:
        """A latent frame's moments from [F, W, H, C] of pixels."""
        blocks = [(f"encoder.down_blocks.{index}", block) for index, block in enumerate(vae.encoder.down_blocks)]
        return self._product("quant_conv", self._through("encoder", frames, blocks + _middle("encoder", vae.encoder)))

    def _through(self, name: str, frames: jax.Array, blocks: list[tuple[str, Any]]) -> jax.Array:
        """The first convolution, the blocks, the last convolution; each does the norm that the next one begins with."""
        norms = [self._first_norm(*block) for block in blocks] + [f"{name}.norm_out"]
        total, normalised = self._causal(f"{name}.conv_in", frames, self._norm_of(norms[0]))
        for (block_name, module), following in zip(blocks, norms[1:], strict=True):
            total, normalised = self._run(block_name, module, total, normalised, following)
        return self._causal(f"{name}.conv_out", normalised, Epilogue())[0]

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
        if module.mode.startswith("down"):
            total = self._smaller(name, module, total)
            return total, self._normalise(total, following)
        if module.mode == "upsample3d":
            total = self._more_frames(f"{name}.time_conv", total)
        made = self._convolve(f"{name}.resample.1", total, None, self._norm_of(following), doubles=True)
        self._rows *= 2
        return made

    def _smaller(self, name: str, module: WanResample, total: jax.Array) -> jax.Array:
        """Half as many columns and rows, and half as many frames where the block is of that kind.

        A convolution with steps of two that pads the right and the bottom is every other pixel of one that pads all around.
        """
        total, _ = self._convolve(f"{name}.resample.1", total, None, Epilogue())
        total, self._rows = total[:, 1::2, 1::2], self._rows // 2
        if module.mode == "downsample2d":
            return total
        place = len(self.after)
        self.after[place] = total[-1:]
        if self._before is None:
            return total
        seen = jnp.concatenate([self._before[place], total])
        weight = self._weights[f"{name}.time_conv.weight"]  # [3, C, 1, N]
        taps = [seen[tap : tap + len(total) - 1 : 2] for tap in range(weight.shape[0])]
        products = sum(
            jnp.einsum("fwhc,cn->fwhn", tap, part[:, 0], preferred_element_type=jnp.float32)
            for tap, part in zip(taps, weight, strict=True)
        )
        return self._only_rows(products + self._weights[f"{name}.time_conv.bias"][0]).astype(total.dtype)

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
