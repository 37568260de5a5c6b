"""Compile one row for `benchmarks.all_presets`, in a separate process: `python -m benchmarks.all_presets_run`.

The report is the report of `check-tpu` with two means over all steps of the video, and with each program's fingerprint and day.
Programs with known fingerprints are not compiled again. Progress and report are JSON lines, as in `backend.cli.check_tpu_run`.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import jax

from backend.child_process import write_message
from backend.imports import hide_unused_libraries
from backend.runtime.program import Compilation, Program
from backend.schemas.request import example_request
from backend.schemas.settings import find_preset
from backend.schemas.worker import AXES
from backend.tpu_analysis.fingerprint import fingerprint
from backend.tpu_analysis.live_rate import predict_live_rate
from backend.tpu_analysis.report import Inspector, Slice, describe_slice, report
from backend.tpu_analysis.unread import include_unread_bytes
from benchmarks.predicted import ProgramCost


class KeepingInspector(Inspector):
    """Inspector that reuses the costs of `known` programs. `marks` holds each program's fingerprint and day by key."""

    def __init__(self, known: dict[str, ProgramCost]) -> None:
        super().__init__(lambda text: write_message({"progress": text}))
        self._known = known
        self.marks: dict[str, dict[str, str]] = {}

    def __call__(self, program: Program, lowered: jax.stages.Lowered) -> Compilation:
        mark = fingerprint(program, lowered)
        if mark in self._known:
            self.costs[program.key] = self._known[mark].costs
        else:
            super().__call__(program, lowered)
        day = self._known[mark].date if mark in self._known else time.strftime("%Y-%m-%d")
        self.marks[program.key] = {"fingerprint": mark, "date": day}
        return Compilation(None)


def means(slice_: Slice) -> dict[str, float]:
    """Return the means of `floor_seconds` and `roofline_seconds` over all steps of the video."""
    flops = [slice_.flops_of(step) for step in range(slice_.request.num_steps)]
    return {
        "mean_floor_seconds": fmean(one.floor_seconds(slice_.chip, slice_.num_devices) for one in flops),
        "mean_roofline_seconds": fmean(one.roofline_seconds(slice_.chip, slice_.num_devices) for one in flops),
    }


def row(preset: str, topology: str, known: dict[str, ProgramCost]) -> dict[str, Any]:
    """Compile the preset for the slice and return the report."""
    request, inspector = example_request(find_preset(preset)), KeepingInspector(known)
    described = describe_slice(request, topology, dict.fromkeys(AXES), inspector)
    result = include_unread_bytes(report(described, inspector), described.model, request)
    result |= predict_live_rate(described.model, request, result["components"]) | means(described)
    result["components"] = {name: cost | inspector.marks[name] for name, cost in result["components"].items()}
    return result


def main() -> None:
    hide_unused_libraries()
    parser = argparse.ArgumentParser(description="Started by `benchmarks.all_presets`, not by hand.")
    parser.add_argument("--preset", required=True)
    parser.add_argument("--topology", required=True)
    parser.add_argument("--known", required=True, type=Path, help="a JSON file with costs of programs by fingerprint")
    arguments = parser.parse_args()
    jax.config.update("jax_traceback_in_locations_limit", 0)
    known = {mark: ProgramCost(**cost) for mark, cost in json.loads(arguments.known.read_text("utf-8")).items()}
    write_message({"report": row(arguments.preset, arguments.topology, known)})


if __name__ == "__main__":
    main()
