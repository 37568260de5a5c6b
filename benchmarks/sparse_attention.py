"""Predict the cycles of one layer's sparse attention on a TPU, and compare them with the dense kernel.

    python -m benchmarks.sparse_attention [--tokens 75600] [--heads 5] [--keep 0.1] [--json FILE]

This needs libtpu and no TPU. It compiles SLA with its block lists and its linear attention for one v6e chip. The cycles of a
Pallas kernel are its bundles times the number of their runs. If a kernel has several inner loops, the most runs count for all.
"""

from __future__ import annotations

import argparse
import json
import math
import sys

import jax
import jax.numpy as jnp

from benchmarks.static_schedule import Schedule, ScheduleReader
from kernels.attention import SparseHeads, predicted_bundles, select_key_blocks, sla_attention
from kernels.attention.block_sparse_tpu import QUERY_BLOCKS
from kernels.attention.key_selection import LIST_ROWS, ROWS
from kernels.attention.sla import BLOCK_KV, BLOCK_Q, num_kept
from kernels.qkv import HeadBounds

CHIP = "v6e"
PADDED = 1024  # eight chips pad the tokens to this multiple
WIDTH = 128


def read_layer(reader: ScheduleReader, tokens: int, heads: int, keep: float) -> dict[str, int]:
    """Return the cycles of one layer's SLA by kernel name, for `heads` heads on one chip.

    Operations of XLA are not included. They take about 1 % of the cycles.
    """
    length = math.ceil(tokens / PADDED) * PADDED
    flat = jax.ShapeDtypeStruct((1, length, heads * WIDTH), jnp.bfloat16)
    bound, mean = jax.ShapeDtypeStruct((1, heads), jnp.float32), jax.ShapeDtypeStruct((1, 1, heads, WIDTH), jnp.float32)
    weight, bias = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32), jax.ShapeDtypeStruct((WIDTH,), jnp.float32)

    def layer(query, key, value, bound, mean, weight, bias):
        query, key, value = (array.reshape(1, length, heads, WIDTH) for array in (query, key, value))
        own = SparseHeads(
            query=query,
            key=key,
            value=value,
            num_keys=tokens,
            num_queries=tokens,
            bounds=HeadBounds(query=bound, key=bound, value=bound),
            mean=mean,
        )
        return sla_attention(own, select_key_blocks(own, keep), (weight, bias)).reshape(flat.shape)

    schedules = reader.read_all(CHIP, layer, [flat, flat, flat, bound, mean, weight, bias])
    blocks_q, blocks_kv = length // BLOCK_Q, math.ceil(tokens / BLOCK_KV)
    kept, parts = num_kept(keep, blocks_kv), math.ceil(length / ROWS)
    # How often the bundles of each loop depth run
    trips = {
        "block_sparse_constant": (
            1,
            heads * math.ceil(blocks_q / QUERY_BLOCKS),
            heads * math.ceil(blocks_q / QUERY_BLOCKS) * QUERY_BLOCKS,
        ),
        "largest_scores": (1, heads * math.ceil(blocks_q / LIST_ROWS), heads * math.ceil(blocks_q / LIST_ROWS) * kept),
        "block_means": (1, parts),
        "sum_linear_attention": (1, parts),
        "add_linear_attention": (1, parts),
    }
    found: dict[str, int] = {}
    for program, schedule in schedules.items():
        name = next((name for name in trips if name in program), None)
        if name is not None:  # the other kernel is the online form, which runs only for heads with large scores
            found[name] = found.get(name, 0) + _cycles(schedule, trips[name])
    return found


def _cycles(schedule: Schedule, trips: tuple[int, ...]) -> int:
    return sum(bundles * times for bundles, times in zip(schedule.by_depth, trips, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=75_600)
    parser.add_argument("--heads", type=int, default=5)
    parser.add_argument("--keep", type=float, default=0.1)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    reader = ScheduleReader()
    try:
        cycles = read_layer(reader, arguments.tokens, arguments.heads, arguments.keep)
    finally:
        reader.close()
    dense = predicted_bundles(CHIP, arguments.tokens, arguments.tokens, arguments.heads)
    total = sum(cycles.values())
    for name, value in sorted(cycles.items(), key=lambda item: -item[1]):
        sys.stdout.write(f"{name:24} {value:12,}\n")
    sys.stdout.write(f"{'all kernels':24} {total:12,}\n")
    if dense is not None:
        sys.stdout.write(f"{'dense kernel':24} {dense:12,}\nshare of the dense kernel {total / dense:.3f}\n")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"cycles": cycles, "total": total, "dense": dense}, file, indent=1)


if __name__ == "__main__":
    main()
