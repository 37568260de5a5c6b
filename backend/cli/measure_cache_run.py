"""Run a model for `measure-cache`: `python -m backend.cli.measure_cache_run measure-cache --preset P`.

`backend.cli.module_process` starts this module with the command line of `app.py`.
"""

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

from backend.cli.arguments import absolute, model_from_arguments, worker_options_from_arguments
from backend.cli.command_line import OK, run_command
from backend.cli.models import print_licences
from backend.cli.progress import Progress
from backend.engine.folder import open_inputs
from backend.errors import RequestError
from backend.pipeline.cache_calibration import NO_REUSE, disable_shortcuts, measure_ratios
from backend.pipeline.encoding import encode_conditions
from backend.pipeline.load import load
from backend.pipeline.preparing import prepare
from backend.pipeline.run import Run
from backend.schemas.events import Event
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import find_preset
from backend.schemas.step_plan import plan_steps
from backend.settings import from_environment
from presets.magnitude_files import (
    BranchRatios,
    Magnitudes,
    magnitudes_file_name,
    published_magnitudes,
    read_magnitudes,
    write_magnitudes,
)

THRESHOLDS = (0.06, 0.12, 0.24)  # values of --mag-cache for which the printed summary counts the reused steps


def run_in_this_process(arguments: argparse.Namespace) -> int:
    """Measure for MagCache how much the output of the layers changes from step to step, and write the ratios to a file.

    Raises: RequestError before the model is loaded.
    """
    preset = find_preset(arguments.preset)
    if not preset.takes_mag_cache:
        raise RequestError(f"preset={preset.name}", "does not support --mag-cache", "choose another")
    given = {name: getattr(arguments, name) for name in ("width", "height", "num_frames", "steps", "seed")}
    given |= {name: absolute(getattr(arguments, name)) for name in ("image", "last_image")}
    plain = {"step_cache": 0.0, "prompt": arguments.prompt or preset.examples[0]}
    request = disable_shortcuts(GenerationRequest.from_preset(preset, **given, **plain, **NO_REUSE))
    open_inputs(request)
    progress = Progress(sys.stderr)
    if arguments.output:
        path = Path(absolute(str(arguments.output)))
    else:
        path = from_environment(arguments.data_dir).magnitudes_dir / magnitudes_file_name(request.resolved_preset.model)
    options = worker_options_from_arguments(arguments)
    model = model_from_arguments(arguments, request.preset)
    print_licences([model or request.resolved_preset.model], sys.stderr)
    loaded = load(request.resolved_preset, model, progress.show, options.mesh, options.executables, ("encode", "denoise"))
    with tempfile.TemporaryDirectory() as folder:
        run = Run(request=request, loaded=loaded, folder=Path(folder), is_cancelled=lambda: False)
        with contextlib.closing(_measurement_steps(run)) as work:
            ratios = progress.run(work)
    progress.end()
    known, checkpoint = read_magnitudes(path), Path(run.loaded.source).name
    what = f"{request.width}x{request.height}, {request.num_frames} frames, {request.steps} steps, seed {request.seed}"
    source = f"measured by app.py measure-cache, preset {request.preset}, model {checkpoint}, {what}"
    measured = {**(known.ratios if known else {}), request.task: ratios}  # keeps the ratios of other tasks
    base = published_magnitudes(request.resolved_preset.model) or Magnitudes(source="", ratios={})
    write_magnitudes(base.model_copy(update={"source": source, "licence": "", "ratios": measured}), path)
    plans = ((one, plan_steps(request.with_changes(mag_cache=one, mag_ratios=ratios.interleaved))) for one in THRESHOLDS)
    counts = ", ".join(f"{sum(step.reuses for step in plan)} at {one:g}" for one, plan in plans)
    sys.stdout.write(f"{path}\nreused steps of {request.num_steps}, by --mag-cache: {counts}\n")
    return OK


def _measurement_steps(run: Run) -> Generator[Event, None, BranchRatios]:
    yield from prepare(run, ("encode", "denoise"))
    conditions = yield from encode_conditions(run)
    return (yield from measure_ratios(run, conditions))


if __name__ == "__main__":
    sys.exit(run_command(run_in_this_process))
