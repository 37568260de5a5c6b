"""Predict upscaling for `benchmarks.upscale`, in a separate process: `python -m benchmarks.upscale_run`.

Writes JSON lines to standard output: {"progress": TEXT} and finally {"report": OBJECT}.
"""

import argparse
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

from backend.checkpoints.upscalers import find_upscaler
from backend.child_process import write_message
from backend.chips import chip_of
from backend.imports import hide_unused_libraries
from backend.pipeline.memory import program_bytes
from backend.pipeline.upscaler import Upscaler, read_model
from backend.runtime.devices import described_devices
from backend.runtime.program import Compilation, Program
from backend.settings import from_environment
from backend.tpu_analysis.hlo_cost import predict
from backend.tpu_analysis.kernels_cost import KernelCost


class Costs:
    """A `Compiler` that stores the figures of the last program: seconds by kind, and bytes on a device."""

    def __init__(self, topology: str) -> None:
        self._chip = chip_of(topology)
        self.found: dict[str, Any] = {}

    def __call__(self, program: Program, lowered: jax.stages.Lowered) -> Compilation:
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            options = {**program.layout.compiler_options, "xla_dump_to": folder, "xla_dump_hlo_as_text": True}
            compiled = lowered.compile(compiler_options=options)
            hlo = next(Path(folder).glob("*.after_codegen.txt")).read_text("utf-8")
        cost = predict(hlo, self._chip, KernelCost(chip=self._chip, lengths=None))
        self.found = {
            "seconds": cost.total,
            "breakdown": cost.seconds,
            "hbm_bytes": program_bytes(compiled),
            "compile_seconds": round(time.monotonic() - started, 1),
        }
        return Compilation(None)


def prediction(arguments: argparse.Namespace) -> dict[str, Any]:
    """Predict the programs for a clip of this size on the slice, without reading, writing and transferring frames."""
    costs, devices = Costs(arguments.topology), described_devices(arguments.topology)
    model = read_model(find_upscaler(arguments.model, from_environment().upscalers_dir))
    upscaler = Upscaler(model, devices, compiler=costs, is_described=True)
    tiling = upscaler.plan_tiling(arguments.height, arguments.width)
    batch = upscaler.choose_batch_size(tiling, arguments.frames)
    write_message({"progress": f"compiling {arguments.model} for {len(devices)} x {chip_of(arguments.topology).name}"})
    upscaler.compile_program(tiling, arguments.scale, batch)
    runs = math.ceil(arguments.frames * tiling.num_tiles / batch)
    given = {name: getattr(arguments, name) for name in ("model", "topology", "width", "height", "frames", "scale")}
    return given | costs.found | {"tiles": tiling.num_tiles, "batch": batch, "runs": runs, "total": runs * costs.found["seconds"]}


def main() -> None:
    hide_unused_libraries()
    parser = argparse.ArgumentParser(description="Started by `benchmarks.upscale`, not by hand.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--topology", required=True)
    for name in ("width", "height", "frames", "scale"):
        parser.add_argument(f"--{name}", type=int, required=True)
    write_message({"report": prediction(parser.parse_args())})


if __name__ == "__main__":
    main()
