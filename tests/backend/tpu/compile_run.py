"""Run by `test_step_compiles.py`: what presets' programs need on slices, as `check-tpu` reports it. Arguments are cases
PRESET,TOPOLOGY or PRESET,TOPOLOGY,PROGRAM, with the key of the only program that is asked for.

libtpu takes minutes for the large ones. So `compiled.json` keeps the costs of each program by a fingerprint of all that they
follow from: the program as it is given to the compiler, the compiler's version, and the code that reads the compiler's answer.
Only a program that is asked for is lowered, and only one that is not known there is compiled. `--again` compiles all of them;
`--write` also renews the file.
"""

import argparse
import ast
import functools
import hashlib
import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import jax

from backend.contract.request import GenerationRequest, example_request, find_preset
from backend.contract.worker import AXES
from backend.families.model import Model
from backend.pipeline.warm_up import calls
from backend.runtime.program import Compilation, Program
from backend.runtime.work import Call
from backend.settings import PROJECT_FOLDER
from backend.tpu import report as report_module
from backend.tpu.report import Inspector, describe_slice

KNOWN = Path(__file__).with_name("compiled.json")
_OF_TPU = tuple(PROJECT_FOLDER / "backend" / "tpu" / name for name in ("hlo_cost.py", "kernels_cost.py", "report.py"))
_OF_ATTENTION = tuple(PROJECT_FOLDER / "kernels" / "attention" / name for name in ("block_sizes.py", "block_sizes.json"))
_READERS = (PROJECT_FOLDER / "backend" / "chips.py", *_OF_TPU, *_OF_ATTENTION)


class KnowingInspector(Inspector):
    """Takes the costs of known programs from the file. `compiled` are those that it had to compile, by fingerprint."""

    def __init__(self, only: str | None, is_again: bool) -> None:
        super().__init__(lambda text: None, only)
        self.only = only
        self.known = {} if is_again else json.loads(KNOWN.read_text("utf-8"))
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


def fingerprint(program: Program, lowered: jax.stages.Lowered) -> str:
    """The hash of everything that a program's costs follow from."""
    parts = [lowered.as_text(), repr(program.layout.compiler_options), version("jaxlib"), version("libtpu")]
    parts += [_meaning(path) for path in _READERS]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


@functools.cache
def _meaning(path: Path) -> str:
    """The file without its comments."""
    text = path.read_text("utf-8")
    return _written(ast.parse(text)) if path.suffix == ".py" else text


def _written(part: object) -> str:
    """A part of a syntax tree, the same in every version of Python: fields that are empty are left out, for each version adds some."""
    if isinstance(part, list):
        return f"[{','.join(map(_written, part))}]"
    if not isinstance(part, ast.AST):
        return repr(part)
    fields = (f"{name}={_written(value)}" for name, value in ast.iter_fields(part) if value not in (None, []))
    return f"{type(part).__name__}({','.join(fields)})"


def calls_of(only: str | None, model: Model, request: GenerationRequest) -> Iterator[Call]:
    """Of the program with this key, or of all."""
    return (call for call in calls(model, request) if only in (None, call.program.key))


def report_on(preset: str, topology: str, inspector: KnowingInspector) -> dict:
    """What `check-tpu` would say, of the programs that are asked for."""
    request, mesh = example_request(find_preset(preset)), dict.fromkeys(AXES)
    described = describe_slice(request, topology, mesh, inspector)
    with mock.patch.object(report_module, "calls", functools.partial(calls_of, inspector.only)):
        return report_module.report(described, inspector)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="+", metavar="PRESET,TOPOLOGY[,PROGRAM]")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    jax.config.update("jax_traceback_in_locations_limit", 0)  # or the kernels hold the paths and lines of their sources
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
