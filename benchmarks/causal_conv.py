"""Count bundles of the decoders' convolutions on a v6e, from libtpu's schedules. No TPU is used and no time is measured.

`python -m benchmarks.causal_conv` prints a table. The shapes are for one chip of `v6e:2x4` at 1280 x 720 (Wan 2.1) and 1280 x 704
(Wan 2.2). The bundles of a loop count as often as the loop runs. The last column is the prediction of `backend.tpu_analysis`
divided by the cycles of the schedule.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys

import jax
import jax.numpy as jnp

from backend.tpu_analysis.kernels_cost import CONVOLUTION_CYCLES, ELEMENT_CYCLES
from benchmarks.static_schedule import ScheduleReader
from kernels import causal_conv as module
from kernels.causal_conv_tiling import TilePlan, padded_channels, padded_rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """A convolution on one chip over `frames` and the `earlier` frames before them, followed by residual and norm."""

    model: str
    frames: int
    columns: int
    rows: int
    channels: int
    out: int
    earlier: int = 2
    doubles: bool = False


SHAPES = (
    Shape(model="2.1", frames=1, columns=20, rows=90, channels=384, out=384),
    Shape(model="2.1", frames=2, columns=40, rows=180, channels=384, out=384),
    Shape(model="2.1", frames=4, columns=80, rows=360, channels=192, out=192),
    Shape(model="2.1", frames=4, columns=160, rows=720, channels=96, out=96),
    Shape(model="2.2", frames=1, columns=10, rows=44, channels=1024, out=1024),
    Shape(model="2.2", frames=2, columns=20, rows=88, channels=1024, out=1024),
    Shape(model="2.2", frames=4, columns=40, rows=176, channels=1024, out=512),
    Shape(model="2.2", frames=4, columns=40, rows=176, channels=512, out=512),
    Shape(model="2.2", frames=4, columns=80, rows=352, channels=512, out=256),
    Shape(model="2.2", frames=4, columns=80, rows=352, channels=256, out=256),
    Shape(model="2.2", frames=4, columns=80, rows=352, channels=256, out=12),
    Shape(model="2.2", frames=4, columns=20, rows=88, channels=1024, out=1024, earlier=0, doubles=True),
    Shape(model="2.2", frames=4, columns=40, rows=176, channels=512, out=512, earlier=0, doubles=True),
)


def read(reader: ScheduleReader, shape: Shape) -> tuple[int, int, int, int]:
    """Compile the convolution and return four numbers.

    They are the bundles of a grid step, the number of grid steps, the cycles of whole tiles in all steps, and the number of
    normalised elements. The bundles of a loop count as often as the loop runs.
    """
    rows, channels, out = padded_rows(shape.rows), padded_channels(shape.channels), padded_channels(shape.out)
    taps = (shape.earlier + 1, 3, 3)
    weight = jax.eval_shape(module.arrange_weight, jax.ShapeDtypeStruct((shape.out, shape.channels, *taps), jnp.bfloat16))
    frames = jax.ShapeDtypeStruct((shape.frames, shape.columns, rows, channels), jnp.bfloat16)
    edge = jax.ShapeDtypeStruct((shape.earlier + shape.frames, 1, rows, channels), jnp.bfloat16)
    residual = jax.ShapeDtypeStruct((shape.frames, shape.columns, rows, out), jnp.bfloat16)
    vector = jax.ShapeDtypeStruct((out,), jnp.float32)
    is_normalised = weight.shape[0] == 1 and shape.out >= 96

    def epilogue(residual, norm) -> module.Epilogue:
        residuals = (residual,) * (2 if shape.doubles else 1) if shape.out >= 96 else ()
        return module.Epilogue(residuals=residuals, norm=norm if is_normalised else None, norm_width=shape.out)

    def convolve(frames, before, weight, bias, edge, residual, norm):
        return module.causal_conv(
            frames,
            before if shape.earlier else None,
            weight,
            bias,
            module.Edges(left=edge, right=edge),
            epilogue(residual, norm),
            num_rows=shape.rows,
            doubles=shape.doubles,
        )

    schedule = reader.read("v6e", convolve, [frames, frames, weight, vector, edge, residual, vector])
    parts = (*weight.shape[:2], weight.shape[2] // 3 * (4 if shape.doubles else 3))
    cut = TilePlan.choose(
        frames.shape,
        parts,
        num_rows=shape.rows,
        doubles=shape.doubles,
        residuals=len(epilogue(residual, vector).residuals),
        outputs=2 if is_normalised else 1,
    )
    loops = [1, 1] + ([] if cut.is_unrolled else [cut.count]) + ([cut.earlier + 1] if cut.loops_over_taps else [])
    step = sum(bundles * math.prod(loops[: depth + 1]) for depth, bundles in enumerate(schedule.by_depth) if depth)
    steps = parts[0] * shape.columns // cut.columns
    elements = shape.frames * cut.output_columns // cut.columns * shape.columns * cut.output_rows * out
    return step, steps, steps * cut.count * cut.frame_cycles, elements if is_normalised else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=int, nargs="*", help="only these shapes, counted from 0")
    chosen = parser.parse_args().only
    write = sys.stdout.write
    write("| Wan | frames, columns, rows, channels in, out | bundles a step | steps | over whole tiles | predicted over read |\n")
    reader = ScheduleReader()
    try:
        for index, shape in enumerate(SHAPES):
            if chosen and index not in chosen:
                continue
            step, steps, tiles, normalised = read(reader, shape)
            size = ", ".join(str(part) for part in (shape.frames, shape.columns, shape.rows, shape.channels, shape.out))
            size += ", doubling" if shape.doubles else ""
            predicted = CONVOLUTION_CYCLES * tiles + ELEMENT_CYCLES * normalised
            cycles = step * steps
            write(f"| {shape.model} | {size} | {step:,} | {steps} | {cycles / tiles:.2f} | {predicted / cycles:.2f} |\n")
            sys.stdout.flush()
    finally:
        reader.close()


if __name__ == "__main__":
    main()
