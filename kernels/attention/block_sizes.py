"""Block sizes of the TPU kernel as data, with the bundles that the TPU's compiler schedules for each: `block_sizes.json`.

`python -m benchmarks.tune_attention` writes that file. This module only reads it, and has a rule for shapes that are not in it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from pathlib import Path
from typing import Literal, get_args

Chip = Literal["v5e", "v5p", "v6e", "v7x"]
Form = Literal["constant", "online"]

TABLE = Path(__file__).with_name("block_sizes.json")
CHIP_OF_DEVICE_KIND: dict[str, Chip] = {
    "TPU v5 lite": "v5e", "TPU v5e": "v5e", "TPU v5": "v5p", "TPU v5p": "v5p",
    "TPU v6 lite": "v6e", "TPU v6e": "v6e", "TPU7x": "v7x", "TPU v7x": "v7x",
}  # fmt: skip
# Published (jax 0.10.2, pallas/mosaic/tpu_info.py): vector memory of a core is 128, 64, 128 and 64 MiB. Some is left to XLA.
VMEM_LIMIT_BYTES: dict[Chip, int] = {"v5e": 100 * 2**20, "v5p": 50 * 2**20, "v6e": 100 * 2**20, "v7x": 50 * 2**20}
LANES = 128
CHUNK = 256  # the matrix unit's depth on v6e and v7x
UNTUNED_BUNDLES = {"constant": 3.2, "online": 4.7}  # twice v6e's figures: a guess on the safe side for a chip without any row
MOST_QUERIES = 2048
MOST_KEYS = {"constant": 9472, "online": 2048}


@dataclasses.dataclass(frozen=True)
class BlockSizes:
    """How the TPU kernel cuts its work: a grid step takes block_q queries and block_kv keys of one head, in chunks.

    Chunks divide their blocks; all are multiples of 128.
    """

    block_q: int
    block_kv: int
    chunk_q: int
    chunk_kv: int

    def __post_init__(self) -> None:
        if self.block_q % self.chunk_q or self.block_kv % self.chunk_kv or self.chunk_q % LANES or self.chunk_kv % LANES:
            raise ValueError(f"{self}: chunks must divide their blocks and be multiples of 128")

    def steps(self, length_q: int, length_kv: int) -> int:
        """Grid steps a head."""
        return self.blocks_of(length_q) * math.ceil(length_kv / self.block_kv)

    def blocks_of(self, length_q: int) -> int:
        """Blocks of queries."""
        return math.ceil(length_q / self.block_q)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunedSizes:
    """One line of the table: `bundles` is the whole program of one grid step as scheduled by libtpu; loops count once."""

    chip: Chip
    form: Form
    length_q: int
    length_kv: int
    sizes: BlockSizes
    bundles: int

    def bundles_a_tile(self) -> float:
        """Scheduled bundles per 8 x 128 score tile of the problem itself, without the padding of its blocks."""
        return self.bundles * self.sizes.steps(self.length_q, self.length_kv) / (self.length_q * self.length_kv / 1024)


def block_sizes(chip: Chip, length_q: int, length_kv: int, form: Form = "constant") -> BlockSizes:
    """The tuned sizes for this shape, or those of the rule where the table has none. The number of heads does not matter."""
    tuned = _row_for(chip, length_q, length_kv, form)
    return default_sizes(length_q, length_kv, form) if tuned is None else tuned.sizes


def _row_for(chip: Chip, length_q: int, length_kv: int, form: Form) -> TunedSizes | None:
    """The table's row of this shape, or of as many keys and of queries that are padded within the row's last block: those cost
    nothing."""
    exact = _table().get((chip, form, length_q, length_kv))
    alike = (row for row in _table().values() if (row.chip, row.form, row.length_kv) == (chip, form, length_kv))
    return exact or next((row for row in alike if row.sizes.blocks_of(length_q) == row.sizes.blocks_of(row.length_q)), None)


def predicted_bundles(chip: Chip, length_q: int, length_kv: int, heads: int, form: Form = "constant") -> int | None:
    """Scheduled bundles, each at least one cycle, of `heads` heads on one chip; None for a shape that is not in the table."""
    tuned = _row_for(chip, length_q, length_kv, form)
    return None if tuned is None else tuned.bundles * tuned.sizes.steps(length_q, length_kv) * heads


def bundles_a_tile(chip: Chip, form: Form = "constant") -> float:
    """Scheduled bundles per 8 x 128 score tile of this chip's longest tuned shape: an estimate for shapes not in the table."""
    rows = [row for row in _table().values() if (row.chip, row.form) == (chip, form)]
    return max(rows, key=lambda row: row.length_q * row.length_kv).bundles_a_tile() if rows else UNTUNED_BUNDLES[form]


def tuned_sizes() -> tuple[TunedSizes, ...]:
    """The whole table."""
    return tuple(_table().values())


def default_sizes(length_q: int, length_kv: int, form: Form = "constant") -> BlockSizes:
    """Blocks up to the size that was best at 75,600 tokens on v6e, chosen to compute little past the ends."""
    block_q = snug_block(length_q, MOST_QUERIES)
    block_kv = snug_block(length_kv, MOST_KEYS[form])
    if form == "online":
        return BlockSizes(block_q, block_kv, longest_chunk(block_q, 512), longest_chunk(block_kv, 512))
    return BlockSizes(block_q, block_kv, longest_chunk(block_q, CHUNK), longest_chunk(block_kv, MOST_KEYS[form] // 2))


def snug_block(length: int, most: int) -> int:
    """The multiple of 256 from half of `most` up to `most` whose blocks reach least past `length`; of equals the larger.

    A single block, a multiple of 128, if that covers `length`.
    """
    if length <= most:
        return math.ceil(length / LANES) * LANES
    sizes = range(math.ceil(most / 2 / CHUNK) * CHUNK, most + 1, CHUNK)
    return min(sizes, key=lambda block: (-length % block, -block))


def longest_chunk(block: int, most: int) -> int:
    """The longest multiple of 128, up to `most`, that divides `block`."""
    return max(chunk for chunk in range(LANES, min(block, most) + 1, LANES) if block % chunk == 0)


@functools.cache
def _table() -> dict[tuple[str, str, int, int], TunedSizes]:
    return {(row.chip, row.form, row.length_q, row.length_kv): row for row in read_table(TABLE)}


def read_table(path: Path) -> list[TunedSizes]:
    """The rows of a table file. Raises: ValueError for an unknown chip."""
    rows = [TunedSizes(**row | {"sizes": BlockSizes(*row["sizes"])}) for row in json.loads(path.read_text("utf-8"))]
    unknown = {row.chip for row in rows} - set(get_args(Chip))
    if unknown:
        raise ValueError(f"{path.name}: unknown chip {', '.join(sorted(unknown))}; known: {', '.join(get_args(Chip))}")
    return rows


def write_table(path: Path, rows: list[TunedSizes]) -> None:
    """One row a line, sorted, so that differences read well."""
    ordered = sorted(rows, key=lambda row: (row.chip, row.form, row.length_q, row.length_kv))
    lines = [json.dumps(dataclasses.asdict(row) | {"sizes": dataclasses.astuple(row.sizes)}) for row in ordered]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")
