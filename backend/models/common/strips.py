"""How a video autoencoder's pictures are cut into strips of columns, one on each chip, and how a network runs on them all, for
arrays as `kernels.causal_conv` takes them."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from backend.runtime.mesh import AXES, Layout, with_sharding
from kernels.causal_conv_cut import padded_channels


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strips:
    """How the picture is cut: columns over `axes` of the mesh. `turned`: the chips share the height, because it divides by their
    number and the width does not; then this module's columns run along the height. To `columns` of latents so many are added as
    `padding`, at the end, that all chips have as many."""

    layout: Layout
    axes: tuple[str, ...]
    turned: bool
    columns: int
    padding: int = 0

    @classmethod
    def of(cls, layout: Layout, height: int, width: int, *, pads: bool = False) -> Self:
        """For latents of this size. All chips share a side that does not divide by their number only if the network `pads`: if it
        goes by `padding`, each chip then has fewer pixels, and the last one some of the picture."""
        spec = layout.spatial_partition(height, width)
        across, down = (_as_tuple(spec[place]) for place in (4, 3))
        choices = [cls(layout=layout, axes=across or down, turned=bool(down), columns=height if down else width)]
        chips = layout.num_chips(AXES)
        for turned, columns in ((False, width), (True, height)) if pads else ():
            padding = -columns % chips
            if padding < (columns + padding) // chips:
                choices.append(cls(layout=layout, axes=AXES, turned=turned, columns=columns, padding=padding))
        return min(choices, key=lambda strips: strips._pixels_of_a_chip(width if strips.turned else height))

    def _pixels_of_a_chip(self, rows: int) -> int:
        return self.all_columns // self.layout.num_chips(self.axes) * rows

    @property
    def all_columns(self) -> int:
        """Those of the latents with the padding."""
        return self.columns + self.padding

    def padding_of(self, array_columns: int) -> int:
        """How many are added to so many columns of latents or pixels."""
        return array_columns // self.columns * self.padding

    @property
    def spec(self) -> P:
        """[F, W, H, C]."""
        return P(None, self.axes or None, None, None)

    def describe(self, caches: Mapping[Any, jax.Array]) -> dict[Any, jax.Array]:
        """Shapes and places of arrays [F, W, H, C] that are cut in this way."""
        sharding = self.layout.sharding(self.spec)
        return {name: with_sharding(leaf, sharding) for name, leaf in caches.items()}

    def cut(self, array: jax.Array, padded_rows: int) -> jax.Array:
        """[F, W, H, C] with padded columns and channels and so many rows, of an array [1, C, F, height, width]; what is added is
        zero."""
        frames = array[0].transpose(1, 2, 3, 0) if self.turned else array[0].transpose(1, 3, 2, 0)
        columns, rows, channels = frames.shape[1:]
        added = self.padding_of(columns), padded_rows - rows, padded_channels(channels) - channels
        return jnp.pad(frames, ((0, 0), *((0, count) for count in added)))

    def run(self, one_chip: Callable, weights: Any, frames: jax.Array, caches: Any, *shared: jax.Array) -> tuple[jax.Array, Any]:
        """`one_chip(weights, frames, caches, *shared)` on every chip's strips of frames and caches: its pictures put together,
        [C, F, height, width], and the caches after it."""
        axes = self.axes or None
        pictures = P(None, None, axes, None) if self.turned else P(None, None, None, axes)
        in_specs = (P(), self.spec, self.spec, *[P()] * len(shared))
        mapped = jax.shard_map(
            one_chip, mesh=self.layout.mesh, in_specs=in_specs, out_specs=(pictures, self.spec), check_vma=False
        )
        made, after = mapped(weights, frames, caches, *shared)
        side = 2 if self.turned else 3
        columns = made.shape[side] // self.all_columns * self.columns
        return jax.lax.slice_in_dim(made, 0, columns, axis=side) if self.padding else made, after

    def pictures(self, frames: jax.Array, channels: int) -> jax.Array:
        """[C, F, height, width] of one strip [F, W, H, C and padding]: a product with zeros and ones, exact, because lanes move
        slowly."""
        first = jnp.einsum("kc,fwhc->kfwh", jnp.eye(channels, frames.shape[3], dtype=frames.dtype), frames)
        return first if self.turned else first.swapaxes(2, 3)


def padded_vector(values: jax.Array) -> jax.Array:
    """A bias or a norm's weight as one float32 vector with padded channels."""
    flat = values.reshape(-1).astype(jnp.float32)
    return jnp.pad(flat, (0, padded_channels(flat.shape[0]) - flat.shape[0]))


def _as_tuple(axes: Any) -> tuple[str, ...]:
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
