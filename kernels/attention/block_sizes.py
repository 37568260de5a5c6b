"""Block sizes of the TPU kernel, with the number of instruction bundles that the TPU's compiler schedules for each size. A bundle
is the group of instructions that a core issues in one cycle. `python -m benchmarks.tune_attention` writes the tuned sizes to the
table `block_sizes.json`.
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
# Vector memory that the kernel may use. A core has 128 MiB (v5e, v6e) or 64 MiB (v5p, v7x), and XLA needs a part of it. Source:
# pallas/mosaic/tpu_info.py of jax 0.10.2.
VMEM_LIMIT_BYTES: dict[Chip, int] = {"v5e": 100 * 2**20, "v5p": 50 * 2**20, "v6e": 100 * 2**20, "v7x": 50 * 2**20}
LANES = 128
# The matrix unit's depth on v6e and v7x. Default blocks are multiples of this number, unless one block contains all tokens. In
# the form "constant", which subtracts no maximum from the scores, the default `chunk_q` is at most this number.
CHUNK = 256
# A pessimistic estimate for chips without rows in the table: bundles per 8 x 128 tile of scores, twice as many as on v6e.
UNTUNED_BUNDLES = {"constant": 3.2, "online": 4.7}
MOST_QUERIES = 2048
MOST_KEYS = {"constant": 9472, "online": 2048}


@dataclasses.dataclass(frozen=True)
class BlockSizes:
    """The block sizes of the TPU kernel. A grid step processes block_q queries and block_kv keys of one head, in chunks of
    chunk_q queries and chunk_kv keys. Chunks divide their blocks. All sizes are multiples of 128.
    """

    block_q: int
    block_kv: int
    chunk_q: int
    chunk_kv: int

    def __post_init__(self) -> None:
        if self.block_q % self.chunk_q or self.block_kv % self.chunk_kv or self.chunk_q % LANES or self.chunk_kv % LANES:
            raise ValueError(f"{self}: chunks must divide their blocks and be multiples of 128")

    def steps(self, length_q: int, length_kv: int) -> int:
        return self.blocks_of(length_q) * math.ceil(length_kv / self.block_kv)

    def blocks_of(self, length_q: int) -> int:
        return math.ceil(length_q / self.block_q)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunedSizes:
    """One row of the table: the tuned sizes for a shape on a chip. `bundles` is the number of instruction bundles that libtpu
    schedules for one grid step. The bundles of a loop count once, not once per iteration.
    """

    chip: Chip
    form: Form
    length_q: int
    length_kv: int
    sizes: BlockSizes
    bundles: int

    def bundles_a_tile(self) -> float:
        """Return the scheduled bundles per 8 x 128 scores. Work on padding counts, scores of padding do not."""
        return self.bundles * self.sizes.steps(self.length_q, self.length_kv) / (self.length_q * self.length_kv / 1024)


def block_sizes(chip: Chip, length_q: int, length_kv: int, form: Form = "constant") -> BlockSizes:
    """Return the tuned sizes for these numbers of queries and keys, or `default_sizes` if the table has no row for them."""
    tuned = _row_for(chip, length_q, length_kv, form)
    return default_sizes(length_q, length_kv, form) if tuned is None else tuned.sizes


def _row_for(chip: Chip, length_q: int, length_kv: int, form: Form) -> TunedSizes | None:
    """Return the table's row for these numbers of queries and keys, or for another number of queries that needs equally many
    blocks. The kernel then does the same work. None if the table has no such row.
    """
    exact = _table().get((chip, form, length_q, length_kv))
    alike = (row for row in _table().values() if (row.chip, row.form, row.length_kv) == (chip, form, length_kv))
    return exact or next((row for row in alike if row.sizes.blocks_of(length_q) == row.sizes.blocks_of(row.length_q)), None)


def predicted_bundles(chip: Chip, length_q: int, length_kv: int, heads: int, form: Form = "constant") -> int | None:
    """Return the number of bundles for `heads` heads on one chip. None if the table has no row for the shape."""
    tuned = _row_for(chip, length_q, length_kv, form)
    return None if tuned is None else tuned.bundles * tuned.sizes.steps(length_q, length_kv) * heads


def bundles_a_tile(chip: Chip, form: Form = "constant") -> float:
    """Estimate the bundles per 8 x 128 tile of scores, for shapes without a row in the table: `TunedSizes.bundles_a_tile` of this
    chip's row with the most scores, or `UNTUNED_BUNDLES`.
    """
    rows = [row for row in _table().values() if (row.chip, row.form) == (chip, form)]
    return max(rows, key=lambda row: row.length_q * row.length_kv).bundles_a_tile() if rows else UNTUNED_BUNDLES[form]


def default_sizes(length_q: int, length_kv: int, form: Form = "constant") -> BlockSizes:
    """Return block sizes with little padding, for shapes without a row in the table. The largest are the best sizes at 75,600
    tokens on v6e.
    """
    block_q = snug_block(length_q, MOST_QUERIES)
    block_kv = snug_block(length_kv, MOST_KEYS[form])
    if form == "online":
        return BlockSizes(block_q, block_kv, longest_chunk(block_q, 512), longest_chunk(block_kv, 512))
    return BlockSizes(block_q, block_kv, longest_chunk(block_q, CHUNK), longest_chunk(block_kv, MOST_KEYS[form] // 2))


def snug_block(length: int, most: int) -> int:
    """Return the multiple of 256 between `most` / 2 and `most` that needs the least padding for `length` tokens, the larger one
    if two are equal. If `length` is at most `most`, return `length` rounded up to a multiple of 128.
    """
    if length <= most:
        return math.ceil(length / LANES) * LANES
    sizes = range(math.ceil(most / 2 / CHUNK) * CHUNK, most + 1, CHUNK)
    return min(sizes, key=lambda block: (-length % block, -block))


def longest_chunk(block: int, most: int) -> int:
    """Return the largest multiple of 128, up to `most`, that divides `block`."""
    return max(chunk for chunk in range(LANES, min(block, most) + 1, LANES) if block % chunk == 0)


@functools.cache
def _table() -> dict[tuple[str, str, int, int], TunedSizes]:
    return {(row.chip, row.form, row.length_q, row.length_kv): row for row in read_table(TABLE)}


def read_table(path: Path) -> list[TunedSizes]:
    """Read the rows of a table file. Raises: ValueError for an unknown chip."""
    rows = [TunedSizes(**row | {"sizes": BlockSizes(*row["sizes"])}) for row in json.loads(path.read_text("utf-8"))]
    unknown = {row.chip for row in rows} - set(get_args(Chip))
    if unknown:
        raise ValueError(f"{path.name}: unknown chip {', '.join(sorted(unknown))}; known: {', '.join(get_args(Chip))}")
    return rows


def write_table(path: Path, rows: list[TunedSizes]) -> None:
    """Write one row per line, sorted, so that version control shows changed rows."""
    ordered = sorted(rows, key=lambda row: (row.chip, row.form, row.length_q, row.length_kv))
    lines = [json.dumps(dataclasses.asdict(row) | {"sizes": dataclasses.astuple(row.sizes)}) for row in ordered]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")
