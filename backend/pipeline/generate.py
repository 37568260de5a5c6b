"""Generate a video from a request: encode, denoise, decode. Yields events as progress reports."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Generator, Sequence
from concurrent.futures import Future
from pathlib import Path

import jax
import numpy as np

from backend.errors import Stopped
from backend.files import remove_half_written
from backend.models.model import STAGES, VIDEO, Latents, Stage
from backend.pipeline.decoding import decode, decode_frames, decode_preview, restore_kept_pixels, write_result
from backend.pipeline.denoising import Denoising, should_warm_up
from backend.pipeline.inputs import open_inputs
from backend.pipeline.live_events import stop_when, stream_events
from backend.pipeline.load import merge_loras
from backend.pipeline.loaded import LoadedModel
from backend.pipeline.memory import max_bytes_beside_weights
from backend.pipeline.previews import StepPreviews, can_run_concurrently, find_preview, frames_to_uint8
from backend.pipeline.profiling import Profile, trace_steps
from backend.pipeline.prompt_schedule import VideoConditions, encode_all_texts
from backend.pipeline.run import Denoised, Run, WorkClock
from backend.pipeline.stage_files import (
    read_conditions,
    read_latents,
    read_seconds,
    read_state,
    remove_files_of_another_model,
    remove_unfinished,
    write_conditions,
    write_latents,
    write_state,
)
from backend.pipeline.state_saver import StateSaver, save_if_closed
from backend.pipeline.warm_up import calls, warm_up
from backend.runtime.hosts import gather_to_host
from backend.runtime.work import OnHost, Work
from backend.runtime.work import run as do
from backend.sampling.enlarging import LatentArray, resize_latents
from backend.schemas.events import Cancelled, Compiling, Encoding, Event, Loading, Step, VideoResult
from backend.schemas.progressive import is_half_size_step, num_half_size_steps, request_at_first_size
from backend.schemas.request import GenerationRequest

# If a step takes less time than this, its preview is a still image: the next preview would replace an animation before it moves.
ANIMATED_STEP_SECONDS = 0.25
# Assumed decoding time divided by the denoising time, for the estimate of the remaining time. Measured with the demo model.
DECODE_SHARE = 0.15


def generate(
    request: GenerationRequest,
    loaded: LoadedModel,
    folder: Path,
    is_cancelled: Callable[[], bool],
    profile: Profile | None = None,
    match_colors: Callable[[list[np.ndarray]], list[np.ndarray]] = list,
) -> Generator[Event]:
    """Generate the request's video in `folder`, and resume from stage files in it.

    Ends with Finished, or with Cancelled and the unfinished video. Closing the iterator saves the work so far.
    `match_colors` changes the finished frames before they are written. It gets and returns the pieces of the video, a list of
    arrays uint8 [F, H, W, 3].

    Raises: ModelError if the model is of another kind than the request's preset, or a LoRA changes nothing.
    """
    run = Run(
        request=request, loaded=loaded, folder=folder, is_cancelled=is_cancelled, profile=profile, match_colors=match_colors
    )
    folder.mkdir(parents=True, exist_ok=True)
    remove_half_written(folder)
    remove_files_of_another_model(folder, loaded.source)
    run.clock.before = read_seconds(folder)
    conditions, latents = read_conditions(folder, request), read_latents(folder, request)
    yield from prepare(run, _remaining_stages(conditions, latents))
    if is_cancelled():
        yield Cancelled(None)
        return
    if latents is None:
        latents = yield from _encode_and_denoise(run, conditions)
    if latents is not None:
        yield from decode(run, latents)


def _remaining_stages(conditions: VideoConditions | None, latents: Latents | None) -> Collection[Stage]:
    if latents is not None:
        return ("decode",)
    return STAGES if conditions is None else ("denoise", "decode")


def _encode_and_denoise(run: Run, conditions: VideoConditions | None) -> Generator[Event, None, Latents | None]:
    """Encode and denoise, or resume from the conditions and the state that an earlier process stored. Return the latents. After a
    cancel, yield Cancelled and return None."""
    resumed_from = None if conditions is None else read_state(run.folder, run.request)
    if conditions is None:
        try:
            conditions = yield from encode_conditions(run)
        except Stopped:
            yield Cancelled(None)
            return None
    if resumed_from is not None:
        run.notes.append(f"The video was interrupted and resumed after step {resumed_from.steps_done}")
    denoised = yield from denoise(run, conditions, resumed_from)
    if run.is_cancelled():
        yield Cancelled(_decode_partial_video(run, conditions, denoised))
        remove_unfinished(run.folder)
        return None
    latents = finish_latents(run, conditions, denoised)
    write_latents(run, latents)
    return latents


def prepare(run: Run, stages: Collection[Stage] = STAGES) -> Generator[Event]:
    """Merge LoRAs and compile the programs of these stages, before the first stage starts.

    A cancel takes effect between two programs. All hosts prepare the same programs in the same order, so all hosts stop at the
    same program. Raises: ModelError if a LoRA changes nothing.
    """
    if "denoise" in stages:
        yield from _merge_loras(run)
        if run.is_cancelled():
            return
    with run.clock.measure("compile"):
        for event in warm_up(run.model, run.request, stages):
            yield event
            if not (isinstance(event, Compiling) and event.is_loaded) and run.is_cancelled():
                return
        reserve_memory(run, stages)


def reserve_memory(run: Run, stages: Collection[Stage] = STAGES) -> None:
    """Unload other cached models if the programs of these stages need the memory of those models."""
    run.loaded.reserve_program_memory(
        run.loaded, lambda: max_bytes_beside_weights(run.model, calls(run.model, run.request, stages))
    )


def _merge_loras(run: Run) -> Generator[Event]:
    """Merge the request's LoRAs into the weights, remove the previous request's LoRAs, and report the progress of downloads.

    A cancel stops the merge within about a second, with some tensors changed. The next request's merge reads these tensors again.
    With several hosts a cancel does not stop the merge, because the hosts would stop at different tensors.
    """
    if not run.request.loras and all(expert.loras == () for expert in run.loaded.experts):
        return
    yield Loading(0, 0, "the LoRAs")

    def merge(tell: Callable[[Event], None]) -> None:
        report = stop_when(run.is_cancelled, tell) if run.place.is_alone else tell
        downscale = run.request.control_downscale if run.request.control else None
        run.notes.extend(merge_loras(run.loaded, run.request.loras, report, downscale))

    with run.clock.measure("lora"), contextlib.suppress(Stopped):
        yield from stream_events(merge)


def encode_conditions(run: Run) -> Generator[Event, None, VideoConditions]:
    """Encode the prompt and the inputs, and write the conditions to the run's folder.

    With several hosts a cancel does not stop the encoding, because the hosts would stop at different programs.

    Raises: Stopped if the run is cancelled before the encoding is complete.
    """
    yield Encoding()
    with run.clock.measure("encode"):
        run.notes.extend(run.model.notes(run.request))
        inputs = open_inputs(run.request, run.kept_pixels)
        work = encode_all_texts(run.model, run.loaded.weights, run.request, inputs)
        conditions = do(work, run.is_cancelled) if run.place.is_alone else do(work)
        write_conditions(run, conditions)
    return conditions


def denoise(run: Run, conditions: VideoConditions, resumed_from: Denoised | None = None) -> Generator[Event, None, Denoised]:
    """Run all steps, or the steps that remain after `resumed_from`, until a cancel.

    A step's preview is created, and its state saved, while the next step runs. Closing the generator saves the last step's state.
    """
    loop, clock = Denoising(run, conditions, resumed_from), run.clock
    if should_warm_up(run.model, run.request):
        loop.warm_up()
    if resumed_from is not None:
        yield _create_resumed_event(run, resumed_from.steps_done, loop.step_costs)
    waiting: _StepReport | None = None
    spent = clock.seconds["denoise"]  # seconds until the previous step's result was ready
    tracer = trace_steps(run.profile, run.folder)
    with _create_previews(run) as previews, StateSaver(functools.partial(write_state, run)) as saver, tracer:
        while loop.steps_done < loop.total_steps and not run.is_cancelled():
            before = loop.copy_to_host() if loop.uses_step_cache and saver.is_due() else None
            skipped = loop.skipped_steps
            with tracer.trace_unit(loop.steps_done + 1, loop.wait_for_devices):
                loop.step()
            if waiting is not None:
                with save_if_closed(saver, loop.copy_to_host if loop.can_save_before_next_step else None):
                    yield waiting.create_event(clock)
            with clock.measure("denoise"):
                shown = _latents_for_preview(run, loop.clean_estimate()[VIDEO])  # waits until the devices have finished the step
            seconds, spent = clock.seconds["denoise"] - spent, clock.seconds["denoise"]
            with clock.measure("denoise"):
                moves = spent > ANIMATED_STEP_SECONDS * (loop.steps_done - loop.first_step)
                preview = previews.start_preview(shown, loop.steps_done, moves)
                if before is not None and loop.skipped_steps == skipped:
                    saver.write(before)
                elif loop.can_save_before_next_step and saver.is_due():
                    saver.save(loop.copy_to_host)
            waiting = _StepReport(
                index=loop.steps_done, first=loop.first_step, costs=loop.step_costs, seconds=seconds, preview=preview
            )
        if waiting is not None:
            yield waiting.create_event(clock)
    if run.request.window_frames:
        run.notes.append(f"The video was denoised in overlapping windows of {run.request.window_frames} frames")
    if run.request.progressive:
        run.notes.append(_describe_progressive(run.request, loop.total_steps))
    if run.request.uses_step_cache:
        run.notes.append(f"The step cache saved most of the work of {loop.skipped_steps} of {loop.total_steps} steps")
    if run.request.mag_cache:
        run.notes.append(f"MagCache reused the work of other steps in {loop.skipped_steps} of {loop.total_steps} steps")
    return loop.current_state()


def _describe_progressive(request: GenerationRequest, total: int) -> str:
    small, sized = num_half_size_steps(request), request_at_first_size(request)
    if not small:
        return "No step ran at half the size: with so few steps, even the first one is needed at full size"
    return f"The first {small} of {total} steps ran at {sized.width}x{sized.height}"


def _create_resumed_event(run: Run, steps_done: int, costs: Sequence[float]) -> Step:
    """Create the event of the last step of an earlier process. The event's `seconds` are the mean of that process's steps."""
    spent = run.clock.before.get("denoise", 0.0)
    left = _estimate_seconds_left(spent, costs, 0, steps_done) if steps_done else 0.0
    return Step(steps_done, len(costs), spent / max(steps_done, 1), left, find_preview(run.folder, steps_done))


def _estimate_seconds_left(spent: float, costs: Sequence[float], first: int, index: int) -> float:
    """Estimate the seconds of the steps after `index` and of the decoder. The steps after `first`, up to and including step
    `index`, took `spent` seconds. `costs` has the relative cost of each step."""
    return spent * (sum(costs[index:]) + DECODE_SHARE * sum(costs)) / sum(costs[first:index])


@dataclasses.dataclass(frozen=True, kw_only=True)
class _StepReport:
    """A finished step whose preview is not finished. `first` is the number of steps that an earlier process ran. `costs` has the
    relative cost of each step of the video."""

    index: int
    first: int
    costs: Sequence[float]
    seconds: float
    preview: Future[str]

    def create_event(self, clock: WorkClock) -> Step:
        """Create the event once the preview exists. Its `seconds_left` are estimated from the steps of this process and include
        the decoding.

        Raises: OSError if the preview could not be written.
        """
        with clock.measure("denoise"):
            name = self.preview.result()
        left = _estimate_seconds_left(clock.seconds["denoise"], self.costs, self.first, self.index)
        return Step(self.index, len(self.costs), self.seconds, left, name)


def _create_previews(run: Run) -> StepPreviews:
    """Create the writer of previews. A preview is written during the next step if the devices can run two programs at once."""
    fps = run.request.fps / run.request.geometry().temporal_scale

    def first_frames(latents: np.ndarray) -> jax.Array:
        return gather_to_host(do(decode_preview(run, latents)))

    return StepPreviews(first_frames, run.folder, fps, can_run_concurrently(run.model, run.request), run.place.is_first)


def finish_latents(run: Run, conditions: VideoConditions, denoised: Denoised, clean: bool = False) -> Latents:
    """Return the whole video's latents at full size, with frames from the inputs inserted. `clean` selects the clean estimate of
    a stopped denoising."""
    return jax.tree.map(np.asarray, do(_finish_at_full_size(run, conditions, denoised.join_latents(clean), denoised.steps_done)))


def _finish_at_full_size(run: Run, conditions: VideoConditions, latents: Latents, steps_done: int) -> Work:
    """Yield the work of finishing the latents: insert frames from the inputs, and enlarge latents that are still at half size."""
    if is_half_size_step(run.request, steps_done - 1):
        latents = yield from run.model.finish(conditions.select(0).select_size(is_full=False), latents)
        latents = {**latents, VIDEO: (yield from _enlarge_to_full_size(run, latents[VIDEO]))}
    return (yield from run.model.finish(conditions.select(0).select_size(is_full=True), latents))


def _enlarge_to_full_size(run: Run, latents: jax.Array) -> Work:
    """Yield the work of enlarging clean latents to the video's full size: with the model's network for this, else by resizing."""
    if run.model.spec.refines:
        return (yield from run.model.enlarge(run.weights, run.request, latents))
    return (yield OnHost(lambda xp, small: _resize_latents(run, small), (latents,)))


def _latents_for_preview(run: Run, clean: np.ndarray) -> np.ndarray:
    """Return the clean latents `clean` at a size that the preview's decoder accepts.

    The decoder accepts latents of the first steps at half size if the model enlarges latents itself. For other models, half-size
    latents are resized to the video's size.
    """
    return clean if run.model.spec.refines else _resize_latents(run, clean)


def _resize_latents(run: Run, latents: LatentArray) -> LatentArray:
    geometry = run.request.geometry()
    sides = geometry.latent_height, geometry.latent_width
    return latents if latents.shape[-2:] == sides else resize_latents(latents, *sides)


def _decode_partial_video(run: Run, conditions: VideoConditions, denoised: Denoised) -> VideoResult | None:
    """Decode the clean estimate at the time of the cancel, and write the mp4. Return None if no step was done."""
    if denoised.steps_done == 0:
        return None
    with run.clock.measure("decode"):
        latents = finish_latents(run, conditions, denoised, clean=True)
        kept, pieces = run.kept_pixels, []
        for frames in decode_frames(run, latents[VIDEO]):
            count = sum(map(len, pieces))
            pieces.append(restore_kept_pixels(kept, frames_to_uint8(frames)[: run.request.num_frames - count], count))
    return write_result(run, pieces, latents)
