"""Run by `test_step_compiles.py`: report the needs of presets' programs on slices as `check-tpu` does. Arguments are cases
PRESET,TOPOLOGY or PRESET,TOPOLOGY,PROGRAM, where PROGRAM is the key of the only program to report.

libtpu takes minutes for large programs. `compiled.json` therefore stores the costs of each program by a fingerprint. The
fingerprint covers the compiler's input and version, and the code that reads the compiler's answer.
`benchmarks/all_presets.json` has further costs by the same fingerprints. Only requested programs are lowered, and only unknown
programs are compiled. `--again` compiles all programs; `--write` also renews the file.
"""

import argparse
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import jax

from backend.models.model import Model
from backend.pipeline.warm_up import calls
from backend.runtime.program import Compilation, Program
from backend.runtime.work import Call
from backend.schemas.request import GenerationRequest, example_request
from backend.schemas.settings import find_preset
from backend.schemas.worker import AXES
from backend.tpu_analysis import report as report_module
from backend.tpu_analysis.fingerprint import fingerprint
from backend.tpu_analysis.report import Inspector, describe_slice
from benchmarks.predicted import read_rows

KNOWN = Path(__file__).with_name("compiled.json")


def costs_of_rows() -> dict[str, dict]:
    """Return the costs of the programs in the documents' tables, by fingerprint."""
    programs = (program for row in read_rows() if row.figures for program in row.figures.programs.values())
    return {program.fingerprint: program.costs for program in programs}


class KnowingInspector(Inspector):
    """An inspector that takes the costs of known programs from the file. `compiled` has the costs of newly compiled programs by
    fingerprint.
    """

    def __init__(self, only: str | None, is_again: bool) -> None:
        super().__init__(lambda text: None, only)
        self.only = only
        self.known = {} if is_again else costs_of_rows() | json.loads(KNOWN.read_text("utf-8"))
        self.compiled: dict[str, dict] = {}

    def __call__(self, program: Program, lowered: jax.stages.Lowered) -> Compilation:
        if self._only not in (None, program.key):
            return Compilation(None)
        key = fingerprint(program, lowered)
        if key in self.known:
            self.costs[program.key] = self.known[key]
            return Compilation(None)
        result = super().__call__(program, lowered)
        self.compiled[key] = self.costs[program.key]
        return result


def list_calls(only: str | None, model: Model, request: GenerationRequest) -> Iterator[Call]:
    """Yield the calls of the program with this key, or all calls."""
    return (call for call in calls(model, request) if only in (None, call.program.key))


def report_on(preset: str, topology: str, inspector: KnowingInspector) -> dict:
    """Return the report of `check-tpu` for the selected programs."""
    request, mesh = example_request(find_preset(preset)), dict.fromkeys(AXES)
    described = describe_slice(request, topology, mesh, inspector)
    with mock.patch.object(report_module, "calls", functools.partial(list_calls, inspector.only)):
        return report_module.report(described, inspector)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="+", metavar="PRESET,TOPOLOGY[,PROGRAM]")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    # without this option, kernels contain the paths and lines of their sources
    jax.config.update("jax_traceback_in_locations_limit", 0)
    reports = {}
    for case in arguments.cases:
        preset, topology, *only = case.split(",")
        inspector = KnowingInspector(*(only or [None]), arguments.again)
        reports[preset] = report_on(preset, topology, inspector)
        if arguments.write and inspector.compiled:
            known = json.loads(KNOWN.read_text("utf-8")) | inspector.compiled
            KNOWN.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", encoding="utf-8")
    print(json.dumps(reports))


if __name__ == "__main__":
    main()
