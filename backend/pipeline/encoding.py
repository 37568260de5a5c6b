"""The stage that encodes the prompt and the inputs to conditions."""

from collections.abc import Generator

from backend.pipeline.inputs import open_inputs
from backend.pipeline.prompt_schedule import VideoConditions, encode_all_texts
from backend.pipeline.run import Run
from backend.pipeline.stage_files import write_conditions
from backend.runtime.work import run as do
from backend.schemas.events import Encoding, Event


def encode_conditions(run: Run) -> Generator[Event, None, VideoConditions]:
    """Encode the prompt and the inputs, and write the conditions to the run's folder. Raises: Stopped after a cancel."""
    yield Encoding()
    with run.clock.measure("encode"):
        run.notes.extend(run.model.notes(run.request))
        conditions = compute_conditions(run)
        write_conditions(run, conditions)
    return conditions


def compute_conditions(run: Run) -> VideoConditions:
    """Encode the prompt and the inputs. Raises: Stopped after a cancel, except with several hosts (all must stop equally)."""
    inputs = open_inputs(run.request, run.kept_pixels)
    work = encode_all_texts(run.model, run.loaded.weights, run.request, inputs)
    return do(work, run.is_cancelled) if run.place.is_alone else do(work)
