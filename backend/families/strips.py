"""How a video autoencoder's pictures are cut into strips, one on each chip, for arrays as `kernels.causal_conv` takes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from backend.runtime.mesh import Layout


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strips:
    """How the picture is cut: columns over `axes` of the mesh. `turned`: the chips share the height, because it divides by their
    number and the width does not; then this module's columns run along the height."""

    layout: Layout
    axes: tuple[str, ...]
    turned: bool

    @classmethod
    def of(cls, layout: Layout, height: int, width: int) -> Strips:
        """For latents of this size."""
        spec = layout.space(height, width)
        across, down = (_as_tuple(spec[place]) for place in (4, 3))
        return cls(layout=layout, axes=across or down, turned=bool(down))

    @property
    def spec(self) -> P:
        """[F, W, H, C]."""
        return P(None, self.axes or None, None, None)

    def describe(self, caches: Mapping[Any, jax.Array]) -> dict[Any, jax.ShapeDtypeStruct]:
        """Shapes and places of arrays [F, W, H, C] that are cut in this way."""
        sharding = self.layout.sharding(self.spec)
        return {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding) for name, leaf in caches.items()}


def _as_tuple(axes: Any) -> tuple[str, ...]:
    return () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
