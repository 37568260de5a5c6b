"""Prepare a video: merge the LoRAs into the weights, and compile the programs of the stages that remain."""

import contextlib
from collections.abc import Callable, Collection, Generator

from backend.errors import Stopped
from backend.models.model import STAGES, Stage
from backend.pipeline.live_events import stop_when, stream_events
from backend.pipeline.load import merge_loras
from backend.pipeline.memory import max_bytes_beside_weights
from backend.pipeline.run import Run
from backend.pipeline.warm_up import calls, warm_up
from backend.schemas.events import Compiling, Event, Loading


def prepare(run: Run, stages: Collection[Stage] = STAGES) -> Generator[Event]:
    """Merge the request's LoRAs and compile the programs of these stages. A cancel stops the merge within about a second, with
    some tensors changed, which the next request's merge reads again. With several hosts a cancel does not stop the merge, because
    the hosts would stop at different tensors. Later, a cancel takes effect between two programs, on all hosts at the same
    program. Raises: ModelError if a LoRA changes nothing."""

    def merge(tell: Callable[[Event], None]) -> None:
        report = stop_when(run.is_cancelled, tell) if run.place.is_alone else tell
        downscale = run.request.control_downscale if run.request.control else None
        run.notes.extend(merge_loras(run.loaded, run.request.loras, report, downscale))

    if "denoise" in stages:
        if run.request.loras or any(expert.loras != () for expert in run.loaded.experts):
            yield Loading(0, 0, "the LoRAs")
            with run.clock.measure("lora"), contextlib.suppress(Stopped):
                yield from stream_events(merge)
        if run.is_cancelled():
            return
    with run.clock.measure("compile"):
        for event in warm_up(run.model, run.request, stages):
            yield event
            if not (isinstance(event, Compiling) and event.is_loaded) and run.is_cancelled():
                return
        # This unloads other cached models if the programs need the memory of those models.
        run.loaded.reserve_program_memory(
            run.loaded, lambda: max_bytes_beside_weights(run.model, calls(run.model, run.request, stages))
        )
