"""Compare our attention kernel with others: scheduled bundles of the TPU's compiler, or seconds on an accelerator.

    python -m benchmarks.attention [--chip v6e] [--shape self-720p] [--only NAME ...] [--json FILE]
    python -m benchmarks.attention --measure [--shape NAME] [--json FILE]

The first command needs libtpu and no TPU. It compiles each kernel for the same shape. It divides the bundles of one grid step
(see `benchmarks.static_schedule`) by the step's score tiles of 8 x 128. The column "with padding" divides the bundles of all
grid steps, which include padding, by the tiles without padding. The second command times the GPU or TPU of this machine. Both
commands check the numerics first, at a small size.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import importlib.util
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from benchmarks.attention_shapes import SHAPES, AttentionShape
from benchmarks.static_schedule import ScheduleReader
from benchmarks.tune_attention import read_schedule
from kernels.attention.api import attention
from kernels.attention.block_sizes import VMEM_LIMIT_BYTES, BlockSizes, Chip, Form, block_sizes
from kernels.attention.pallas_tpu import KernelOptions, bounds_are_safe, head_bounds, tpu_attention
from kernels.attention.reference import reference_attention

# Bundles per score tile on v6e at 75,600 tokens, published with the first open Wan kernels for TPU, counted as here.
PUBLISHED = {
    "published online kernel, 3328/2816/256/256": 2.34,
    "published fixed-maximum kernel, 4096/2048/256": 1.68,
    "floor of the matrix units": 1.5,
}
PUBLISHED_SIZES: dict[Form, BlockSizes] = {
    "online": BlockSizes(3328, 2816, 3328, 256),
    "constant": BlockSizes(4096, 2048, 4096, 256),
}
# block_q, block_kv, block_kv_compute for the kernels of libraries; the table shows the best
LIBRARY_BLOCKS = ((2048, 2048, 512), (2048, 2048, 1024), (4096, 2048, 512), (1024, 2048, 512))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """The figures of one kernel. Only compiled kernels have all fields. Published figures have only `name` and `bundles_a_tile`.

    `bundles_a_tile` is for the score tiles of one grid step. `with_padding` is the bundles of all grid steps, divided by the
    tiles without padding.
    """

    name: str
    blocks: str = ""
    bundles: int | None = None
    bundles_a_tile: float
    with_padding: float | None = None
    spills: int | None = None
    compile_seconds: float | None = None


def check_numerics() -> float:
    """Return the largest error of our kernel's constant and online forms in the TPU interpreter, for 300 queries and 600 keys.

    Raises: SystemExit if the error is too large.
    """
    keys = jax.random.split(jax.random.key(0), 3)
    query, key, value = (jax.random.normal(key, (1, length, 2, 128)) for key, length in zip(keys, (300, 600, 600), strict=True))
    loud = query * jnp.array([1.0, 40.0]).reshape(1, 1, 2, 1)  # the second head needs the online form
    arrays, scale = [array.astype(jnp.bfloat16) for array in (loud, key, value)], math.log(2) / 8
    assert bounds_are_safe(head_bounds(arrays[0] / 8, *arrays[1:]), 600).tolist() == [[True, False]]
    sizes = BlockSizes(256, 512, 256, 256)
    options = KernelOptions(scale=scale, sizes=sizes, online_sizes=sizes, smooth_keys=False, interpret=pltpu.InterpretParams())
    ours = cast(jax.Array, tpu_attention(*arrays, options=options))  # a single array, without log-sum-exps
    exact = cast(jax.Array, reference_attention(*(array.astype(jnp.float32) for array in arrays), scale=scale))
    error, allowed = float(jnp.abs(ours - exact).max()), 2**-7 * float(jnp.abs(value).max())  # two roundings to bfloat16
    if error > allowed:
        raise SystemExit(f"our kernel is off by {error:.2g}, more than {allowed:.2g}; nothing was compiled")
    return error


def ours(reader: ScheduleReader, chip: Chip, shape: AttentionShape, form: Form, sizes: BlockSizes, name: str) -> Row:
    """Compile our kernel with these block sizes."""
    schedule = read_schedule(reader, chip, shape, form, sizes)
    tiles = sizes.block_q * sizes.block_kv / 1024
    steps = sizes.steps(shape.length_q, shape.length_kv)
    return Row(
        name=name,
        blocks="/".join(map(str, dataclasses.astuple(sizes))),
        bundles=schedule.bundles,
        bundles_a_tile=schedule.bundles / tiles,
        with_padding=schedule.bundles * steps * shape.heads / shape.score_tiles,
        spills=schedule.slots["VLOAD:FILL"] + schedule.slots["VSTORE:SPILL"],
        compile_seconds=schedule.compile_seconds,
    )


def library(
    reader: ScheduleReader, chip: Chip, shape: AttentionShape, name: str, make: Callable[..., Callable[..., jax.Array]]
) -> Row:
    """Compile a library's kernel with each of `LIBRARY_BLOCKS` and return the best row.

    Lengths are padded to whole blocks, without a mask.
    """
    rows = []
    for block_q, block_kv, compute in LIBRARY_BLOCKS:
        padded_q, padded_kv = (
            math.ceil(length / block) * block for length, block in ((shape.length_q, block_q), (shape.length_kv, block_kv))
        )
        attend = make(shape.heads, padded_q, padded_kv, block_q, block_kv, compute)
        arrays = [
            jax.ShapeDtypeStruct((shape.heads, length, shape.width), jnp.bfloat16) for length in (padded_q, padded_kv, padded_kv)
        ]
        vmem = {"xla_tpu_scoped_vmem_limit_kib": str(VMEM_LIMIT_BYTES[chip] // 1024)}  # jax's kernel sets no limit itself
        schedule = reader.read(chip, attend, arrays, vmem)
        steps = padded_q // block_q * (padded_kv // block_kv)
        rows.append(
            Row(
                name=name,
                blocks=f"{block_q}/{block_kv}/{compute}",
                bundles=schedule.bundles,
                bundles_a_tile=schedule.bundles * 1024 / (block_q * block_kv),
                with_padding=schedule.bundles * steps * shape.heads / shape.score_tiles,
                spills=schedule.slots["VLOAD:FILL"] + schedule.slots["VSTORE:SPILL"],
                compile_seconds=schedule.compile_seconds,
            )
        )
    return min(rows, key=lambda row: row.bundles_a_tile)


def make_jax_splash(heads: int, length_q: int, length_kv: int, block_q: int, block_kv: int, compute: int):
    """Return jax's own splash attention, forward only."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    mask = masks.MultiHeadMask([masks.FullMask((length_q, length_kv))] * heads)
    sizes = splash.BlockSizes(block_q=block_q, block_kv=block_kv, block_kv_compute=compute)
    return splash.make_splash_mha(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1)


def make_tokamax(
    heads: int, length_q: int, length_kv: int, block_q: int, block_kv: int, compute: int, constant_maximum: float | None = None
):
    """Return the kernel of tokamax's TPU attention, with the scheduler that tokamax's heuristic selects."""
    package = "tokamax._src.ops.experimental.tpu.splash_attention"  # installed only for this benchmark
    splash, masks = (importlib.import_module(f"{package}.splash_attention_{name}") for name in ("kernel", "mask"))

    config = splash.SplashConfig(
        block_q=block_q,
        block_kv=block_kv,
        block_kv_compute=compute,
        use_experimental_scheduler=True,
        max_logit_const=constant_maximum,
    )
    return splash.make_splash_mha(masks.FullMask((length_q, length_kv)), config=config, q_seq_shards=1)


def rows_of(reader: ScheduleReader, chip: Chip, shape: AttentionShape) -> dict[str, Callable[[], Row]]:
    """Return functions by name, each of which compiles a kernel and returns its row."""
    makers: dict[str, Callable[[], Row]] = {}
    for form in get_args(Form):
        tuned = block_sizes(chip, shape.length_q, shape.length_kv, form)
        for name, sizes in ((f"ours-{form}", tuned), (f"ours-{form}-published-blocks", PUBLISHED_SIZES[form])):
            makers[name] = functools.partial(ours, reader, chip, shape, form, sizes, name)
    makers["jax-splash"] = functools.partial(library, reader, chip, shape, "jax-splash", make_jax_splash)
    if importlib.util.find_spec("tokamax"):
        makers["tokamax"] = functools.partial(library, reader, chip, shape, "tokamax", make_tokamax)
        constant = functools.partial(make_tokamax, constant_maximum=30.0)
        makers["tokamax-constant"] = functools.partial(library, reader, chip, shape, "tokamax-constant", constant)
    return makers


def compare(chip: Chip, shape: AttentionShape, only: list[str] | None) -> list[Row]:
    """Compile the kernels one after the other. Report failed compilations on standard error."""
    reader, rows = ScheduleReader(), []
    try:
        sys.stderr.write(f"numerics: largest error {check_numerics():.2g}\n")
        for name, make_row in rows_of(reader, chip, shape).items():
            if only and name not in only:
                continue
            try:
                rows.append(make_row())
            except (jax.errors.JaxRuntimeError, NotImplementedError, ValueError) as error:
                sys.stderr.write(f"{name} does not compile for {chip}: {str(error).splitlines()[0][:300]}\n")
    finally:
        reader.close()
    published = PUBLISHED if (chip, shape.name) == ("v6e", "self-720p") else {}
    return rows + [Row(name=name, bundles_a_tile=figure) for name, figure in published.items()]


def table(rows: list[Row]) -> str:
    """The rows as text."""
    heads = ("kernel", "blocks", "bundles a step", "a tile", "with padding", "spills a step", "compile s")
    cells = [heads] + [
        (
            row.name,
            row.blocks,
            _cell(row.bundles, "d"),
            _cell(row.bundles_a_tile, ".3f"),
            _cell(row.with_padding, ".3f"),
            _cell(row.spills, "d"),
            _cell(row.compile_seconds, ".0f"),
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(heads))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells)


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def measure(shape: AttentionShape, repeats: int = 5) -> dict[str, float | str]:
    """Check the numerics of `attention` on this process's accelerator and return the median seconds of a call."""
    if jax.default_backend() not in ("gpu", "tpu"):
        raise SystemExit("--measure needs a GPU or a TPU that jax sees; without one, leave it out for the compiler's figures")
    keys = jax.random.split(jax.random.key(0), 3)
    lengths = (shape.length_q, shape.length_kv, shape.length_kv)
    arrays = [
        jax.random.normal(key, (1, length, shape.heads, shape.width), jnp.bfloat16)
        for key, length in zip(keys, lengths, strict=True)
    ]
    attend = jax.jit(attention)
    started = time.perf_counter()
    result = jax.block_until_ready(attend(*arrays))
    compile_seconds = time.perf_counter() - started
    exact = reference_attention(arrays[0][:, :64], *arrays[1:], scale=shape.width**-0.5)
    error = float(np.abs(np.asarray(result[:, :64], np.float32) - np.asarray(exact, np.float32)).max())
    if error > 0.03:  # two roundings to bfloat16 of averages of normal values, 2 ** -7 * 4
        raise SystemExit(f"{shape.name} is off by {error:.2g}; nothing was timed")
    seconds = statistics.median(_seconds(attend, arrays) for _ in range(repeats))
    floating_point_operations = 4 * shape.length_q * shape.length_kv * shape.width * shape.heads
    return {
        "shape": shape.name,
        "device": jax.devices()[0].device_kind,
        "seconds": seconds,
        "error": error,
        "tflops": floating_point_operations / seconds / 1e12,
        "compile_seconds": compile_seconds - seconds,
    }


def _seconds(attend: Callable[..., jax.Array], arrays: list[jax.Array]) -> float:
    started = time.perf_counter()
    jax.block_until_ready(attend(*arrays))
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chip", choices=get_args(Chip), default="v6e")
    parser.add_argument("--shape", choices=list(SHAPES), default="self-720p")
    parser.add_argument("--only", nargs="+", help="names from the table's first column")
    parser.add_argument("--measure", action="store_true", help="time this process's own accelerator instead")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    if arguments.measure:
        result = [measure(shape)]
        sys.stdout.write(json.dumps(result[0], indent=2) + "\n")
    else:
        rows = compare(arguments.chip, shape, arguments.only)
        result = [dataclasses.asdict(row) for row in rows]
        sys.stdout.write(f"{arguments.chip}, {shape.name}, scheduled bundles per 8 x 128 score tile\n{table(rows)}\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
