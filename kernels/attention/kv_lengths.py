"""The number of keys that the queries of each sample see, known only when the program runs."""

from __future__ import annotations

import dataclasses
import functools

import jax


@functools.partial(jax.tree_util.register_dataclass, data_fields=["values"], meta_fields=["minimum"])
@dataclasses.dataclass(frozen=True, kw_only=True)
class KvLengths:
    """The number of leading keys that each sample's queries see: `values` [B] int32.

    `minimum` is a lower bound of `values`, known when the program is compiled. Keys with an index below it need no mask.
    """

    values: jax.Array
    minimum: int = 1
