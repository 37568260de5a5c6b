"""How many keys the queries of each sample see, known only when the program runs."""

from __future__ import annotations

import dataclasses
import functools

import jax


@functools.partial(jax.tree_util.register_dataclass, data_fields=["values"], meta_fields=["least"])
@dataclasses.dataclass(frozen=True, kw_only=True)
class KeyCounts:
    """`values` [B] int32: each sample's queries see its first keys, that many. None is below `least`, which is known when the
    program is compiled: keys before that need no mask."""

    values: jax.Array
    least: int = 1
