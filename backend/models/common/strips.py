"""Division of a video autoencoder's frames into strips of columns. Each chip computes one strip with `kernels.causal_conv`."""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from backend.runtime.mesh import AXES, Layout
from kernels.causal_conv_tiling import padded_channels


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strips:
    """The division of the frames into strips.

    The columns are divided over the mesh axes `axes`. If `is_transposed`, the columns in this module are rows of the video.
    `padding` columns are added at the end of the `columns` of the latents, so that all chips have the same number.
    """

    layout: Layout
    axes: tuple[str, ...]
    is_transposed: bool
    columns: int
    padding: int = 0

    @classmethod
    def choose(cls, layout: Layout, height: int, width: int, *, pads: bool = False) -> Self:
        """Choose the strips with the fewest pixels per chip. With `pads`, the network supports padding columns.

        The last chip has at least one column that is not padding.
        """
        spec = layout.spatial_partition(height, width)
        across, down = ((axes,) if isinstance(axes, str) else tuple(axes or ()) for axes in (spec[4], spec[3]))
        choices = [cls(layout=layout, axes=across or down, is_transposed=bool(down), columns=height if down else width)]
        chips = layout.num_chips(AXES)
        for is_transposed, columns in ((False, width), (True, height)) if pads else ():
            padding = -columns % chips
            if padding < (columns + padding) // chips:
                choices.append(cls(layout=layout, axes=AXES, is_transposed=is_transposed, columns=columns, padding=padding))

        def pixels_of_a_chip(strips: Self) -> int:
            return strips.all_columns // layout.num_chips(strips.axes) * (width if strips.is_transposed else height)

        return min(choices, key=pixels_of_a_chip)

    @property
    def all_columns(self) -> int:
        return self.columns + self.padding

    @property
    def spec(self) -> P:
        return P(None, self.axes or None, None, None)

    def to_strips(self, array: jax.Array, padded_rows: int) -> jax.Array:
        frames = array[0].transpose(1, 2, 3, 0) if self.is_transposed else array[0].transpose(1, 3, 2, 0)
        columns, rows, channels = frames.shape[1:]
        added = columns // self.columns * self.padding, padded_rows - rows, padded_channels(channels) - channels
        return jnp.pad(frames, ((0, 0), *((0, count) for count in added)))

    def run_on_chips(
        self, one_chip: Callable, weights: object, frames: jax.Array, caches: object, *shared: jax.Array
    ) -> tuple[jax.Array, Any]:
        """Run `one_chip(weights, frames, caches, *shared)` on every chip, with the chip's strip of `frames` and `caches`.

        Returns: the joined result [C, F, height, width], and the new caches.
        """
        axes = self.axes or None
        pictures = P(None, None, axes, None) if self.is_transposed else P(None, None, None, axes)
        in_specs = (P(), self.spec, self.spec, *[P()] * len(shared))
        mapped = jax.shard_map(
            one_chip, mesh=self.layout.mesh, in_specs=in_specs, out_specs=(pictures, self.spec), check_vma=False
        )
        made, after = mapped(weights, frames, caches, *shared)
        side = 2 if self.is_transposed else 3
        columns = made.shape[side] // self.all_columns * self.columns
        return jax.lax.slice_in_dim(made, 0, columns, axis=side) if self.padding else made, after

    def from_strip(self, frames: jax.Array, channels: int) -> jax.Array:
        """Convert one strip [F, W, H, padded C] to [C, F, height, width], by an exact product: moving lanes is slow on a TPU."""
        first = jnp.einsum("kc,fwhc->kfwh", jnp.eye(channels, frames.shape[3], dtype=frames.dtype), frames)
        return first if self.is_transposed else first.swapaxes(2, 3)


def padded_vector(values: jax.Array) -> jax.Array:
    flat = values.reshape(-1).astype(jnp.float32)
    return jnp.pad(flat, (0, padded_channels(flat.shape[0]) - flat.shape[0]))
