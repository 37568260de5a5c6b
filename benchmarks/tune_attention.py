"""Find the TPU kernel's best block sizes by the compiler's schedule, and store them with their figures.

    python -m benchmarks.tune_attention [--chips v6e ...] [--shapes self-720p ...] [--forms constant online] [--most N]

This needs libtpu and no TPU. Every candidate is compiled. The candidate with the fewest scheduled bundles for the whole problem,
including padding, is stored in kernels/attention/block_sizes.json. A stored row is replaced only if the new row is better, or
with --again.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
from typing import get_args

import jax
import jax.numpy as jnp

from benchmarks.attention_shapes import SHAPES, AttentionShape
from benchmarks.static_schedule import Schedule, ScheduleReader
from kernels.attention.block_sizes import (
    CHUNK,
    TABLE,
    VMEM_LIMIT_BYTES,
    BlockSizes,
    Chip,
    Form,
    TunedSizes,
    read_table,
    snug_block,
    write_table,
)
from kernels.attention.pallas_tpu import Problem, attend_heads

MOST_TILES = 20_480  # score tiles of a grid step: programs beyond 30,000 bundles take minutes to compile
MOST_PADDING = 0.01  # share of the length
FEWEST_TILES = 512  # with fewer tiles, a step's start and end take more time than its work
BLOCKS_Q = (2048, 4096)
BLOCKS_KV = {"constant": (9472, 8192, 4096), "online": (2048, 4096)}


def candidates(shape: AttentionShape, form: Form) -> list[BlockSizes]:
    """Return blocks with little padding, divided into chunks of keys, queries, or both. The most promising come first."""
    sizes = {}
    blocks_q = dict.fromkeys(block for most in BLOCKS_Q for block in _blocks(shape.length_q, most))
    blocks_kv = dict.fromkeys(block for most in BLOCKS_KV[form] for block in _blocks(shape.length_kv, most))
    for block_q, block_kv in itertools.product(blocks_q, blocks_kv):
        if FEWEST_TILES <= block_q * block_kv // 1024 <= MOST_TILES:
            sizes |= dict.fromkeys(_chunked(block_q, block_kv, form))
    return list(sizes)


def _blocks(length: int, most: int) -> list[int]:
    """Return the block with the least padding, and the longest block with at most `MOST_PADDING`."""
    little = [block for block in range(most, 0, -CHUNK) if -length % block <= MOST_PADDING * length]
    return [snug_block(length, most), *little[:1]]


def _chunked(block_q: int, block_kv: int, form: Form) -> list[BlockSizes]:
    constant = [(256, block_kv // 2), (256, block_kv), (256, block_kv // 4)]
    online = [(512, 512), (512, 256), (256, block_kv), (block_q, 256)]
    chunks = constant if form == "constant" else online
    return [
        BlockSizes(block_q, block_kv, chunk_q, chunk_kv)
        for chunk_q, chunk_kv in chunks
        if block_q % chunk_q == 0 and chunk_kv % 128 == 0 and block_kv % chunk_kv == 0
    ]


def read_schedule(reader: ScheduleReader, chip: Chip, shape: AttentionShape, form: Form, sizes: BlockSizes) -> Schedule:
    """Compile one form of the kernel alone, for this shape. Raises: jax.errors.JaxRuntimeError if it does not fit."""
    problem = Problem(
        batch=1,
        length_q=shape.length_q,
        length_kv=shape.length_kv,
        heads=shape.heads,
        width=shape.width,
        window=None,
        layout="heads",
        has_bias=False,
        uses_online_softmax=form == "online",
        sizes=sizes,
    )
    attend = functools.partial(attend_heads, problem, vmem_limit_bytes=VMEM_LIMIT_BYTES[chip], interpret=False)
    lengths = (shape.length_q, shape.length_kv, shape.length_kv)
    arrays = [jax.ShapeDtypeStruct((1, shape.heads, length, shape.width), jnp.bfloat16) for length in lengths]
    heads = [jax.ShapeDtypeStruct(size, jnp.int32) for size in ((shape.heads,), ())]
    return reader.read(chip, lambda order, count, *arrays: attend(order, count, arrays=arrays)[0], [*heads, *arrays])


def tune(reader: ScheduleReader, chip: Chip, shape: AttentionShape, form: Form, most: int) -> TunedSizes | None:
    """Return the best of the first `most` candidates, None if no candidate compiles. Print each result to standard error."""
    rows = []
    for sizes in candidates(shape, form)[:most]:
        try:
            schedule = read_schedule(reader, chip, shape, form, sizes)
        except jax.errors.JaxRuntimeError as error:
            sys.stderr.write(f"{chip} {shape.name} {form} {sizes}: {str(error).splitlines()[0][:200]}\n")
            continue
        row = TunedSizes(
            chip=chip, form=form, length_q=shape.length_q, length_kv=shape.length_kv, sizes=sizes, bundles=schedule.bundles
        )
        rows.append(row)
        sys.stderr.write(f"{chip} {shape.name} {form} {sizes}: {row.bundles_a_tile():.3f} ({schedule.compile_seconds:.0f} s)\n")
    return min(rows, key=TunedSizes.bundles_a_tile, default=None)


def keep(row: TunedSizes, again: bool) -> None:
    """Write the row to the table, unless the table has a better row and `again` is False."""

    def place(row: TunedSizes) -> tuple:
        return row.chip, row.form, row.length_q, row.length_kv

    rows = {place(old): old for old in read_table(TABLE)}
    old = rows.get(place(row))
    if old is None or again or row.bundles_a_tile() < old.bundles_a_tile():
        write_table(TABLE, [*(rows | {place(row): row}).values()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chips", nargs="+", choices=get_args(Chip), default=list(get_args(Chip)))
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--forms", nargs="+", choices=get_args(Form), default=list(get_args(Form)))
    parser.add_argument("--most", type=int, default=100, help="candidates for each row")
    parser.add_argument("--again", action="store_true", help="replace rows also by worse results, after a change of the kernel")
    arguments = parser.parse_args()
    reader = ScheduleReader()
    try:
        for chip, name, form in itertools.product(arguments.chips, arguments.shapes, arguments.forms):
            best = tune(reader, chip, SHAPES[name], form, arguments.most)
            if best is not None:
                keep(best, arguments.again)
                sys.stdout.write(f"{chip} {name} {form}: {best.bundles_a_tile():.3f} bundles a score tile with {best.sizes}\n")
                sys.stdout.flush()
    finally:
        reader.close()


if __name__ == "__main__":
    main()
