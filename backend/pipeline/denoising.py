"""The stage that denoises a video. It reports each step with a preview, saves the state, and resumes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Generator, Sequence
from concurrent.futures import Future

import jax
import numpy as np

from backend.models.model import VIDEO, Latents
from backend.pipeline.decoding import decode_frames, decode_preview, restore_kept_pixels, write_result
from backend.pipeline.denoising_loop import Denoising, should_warm_up
from backend.pipeline.previews import StepPreviews, can_run_concurrently, find_preview, frames_to_uint8
from backend.pipeline.profiling import trace_steps
from backend.pipeline.prompt_schedule import VideoConditions
from backend.pipeline.run import Denoised, PartialVideo, Run, WorkClock
from backend.pipeline.stage_files import read_state, remove_unfinished, write_latents, write_state
from backend.pipeline.state_saver import StateSaver, save_if_closed
from backend.runtime.hosts import gather_to_host
from backend.runtime.work import OnHost, Work
from backend.runtime.work import run as do
from backend.sampling.enlarging import LatentArray, resize_latents
from backend.schemas.events import Event, Step, VideoResult
from backend.schemas.progressive import num_half_size_steps, request_at_first_size
from backend.schemas.request import GenerationRequest
from backend.schemas.step_plan import plan_steps

# If a step takes less time than this, its preview is a still image: the next preview would replace an animation before it moves.
ANIMATED_STEP_SECONDS = 0.25
# Assumed decoding time divided by the denoising time, for the estimate of the remaining time. Measured with the demo model.
DECODE_SHARE = 0.15


def denoise_video(run: Run, conditions: VideoConditions) -> Generator[Event, None, Latents]:
    """Denoise the video, or resume from the state that an earlier process stored. Write and return the latents.

    Raises: PartialVideo after a cancel, with the video of the clean estimate.
    """
    resumed_from = read_state(run.folder, run.request)
    if resumed_from is not None:
        run.notes.append(f"The video was interrupted and resumed after step {resumed_from.steps_done}")
    denoised = yield from denoise(run, conditions, resumed_from)
    if run.is_cancelled():
        result = _decode_partial_video(run, conditions, denoised)
        remove_unfinished(run.folder)
        raise PartialVideo(result)
    latents = finish_latents(run, conditions, denoised)
    write_latents(run, latents)
    return latents


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
    spent = clock.seconds["denoise"]  # seconds of denoising up to the end of the previous step
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
    if run.request.sparse:
        run.notes.append(_describe_sparse(loop.count_blocks(), loop.num_sparse_steps, loop.total_steps))
    if run.request.uses_step_cache:
        run.notes.append(f"The step cache saved most of the work of {loop.skipped_steps} of {loop.total_steps} steps")
    if run.request.mag_cache:
        run.notes.append(f"MagCache reused the work of other steps in {loop.skipped_steps} of {loop.total_steps} steps")
    spec = run.model.spec
    if spec.num_experts > 1 and not any(step.expert for step in plan_steps(run.request, spec.boundary)):
        run.notes.append("The low-noise expert was not used, because no step is below its noise level; more steps use it")
    return loop.current_state()


def _describe_sparse(counts: tuple[float, float], num_sparse: int, total: int) -> str:
    """Return a note about Sol-Attn for the video's result. `counts` is the result of `Denoising.count_blocks`."""
    exact, dropped = counts
    text = f"Sol-Attn approximated the attention in {num_sparse} of {total} steps"
    return f"{text}; {dropped / (exact + dropped):.1%} of the blocks above its threshold had no space" if exact else text


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
    """A finished step whose preview may still be unfinished. `first` is the number of steps that an earlier process ran. `costs`
    has the relative cost of each step of the video."""

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
    """Return the whole video's latents at full size. Frames from the inputs, such as a first frame, are inserted.

    If `clean`, return the clean estimate of the last step. Callers set `clean` if the denoising was stopped early.
    """
    return jax.tree.map(np.asarray, do(_finish_at_full_size(run, conditions, denoised.join_latents(clean), denoised.steps_done)))


def _finish_at_full_size(run: Run, conditions: VideoConditions, latents: Latents, steps_done: int) -> Work:
    """Yield the work of finishing the latents: insert frames from the inputs, and enlarge latents that are still at half size."""
    if steps_done - 1 < num_half_size_steps(run.request):
        latents = yield from run.model.finish(conditions.select(0).select_size(is_full=False), latents)
        latents = {**latents, VIDEO: (yield from _enlarge_to_full_size(run, latents[VIDEO]))}
    return (yield from run.model.finish(conditions.select(0).select_size(is_full=True), latents))


def _enlarge_to_full_size(run: Run, latents: jax.Array) -> Work:
    """Yield the work of enlarging clean latents to the video's full size. Models with a network for enlarging use this network.
    For all other models, the latents are resized."""
    if run.model.spec.refines:
        return (yield from run.model.enlarge(run.weights, run.request, latents))
    return (yield OnHost(lambda xp, small: _resize_latents(run, small), (latents,)))


def _latents_for_preview(run: Run, clean: np.ndarray) -> np.ndarray:
    """Return the clean latents `clean` at a size that the preview's decoder accepts.

    If the model has a network for enlarging latents, the decoder also accepts half-size latents. For all other models, half-size
    latents are resized to the video's size.
    """
    return clean if run.model.spec.refines else _resize_latents(run, clean)


def _resize_latents(run: Run, latents: LatentArray) -> LatentArray:
    geometry = run.request.geometry()
    sides = geometry.latent_height, geometry.latent_width
    return latents if latents.shape[-2:] == sides else resize_latents(latents, *sides)


def _decode_partial_video(run: Run, conditions: VideoConditions, denoised: Denoised) -> VideoResult | None:
    """Decode the clean estimate of the last step before the cancel, and write the mp4. Return None if no step was done."""
    if denoised.steps_done == 0:
        return None
    with run.clock.measure("decode"):
        latents = finish_latents(run, conditions, denoised, clean=True)
        kept, pieces = run.kept_pixels, []
        for frames in decode_frames(run, latents[VIDEO]):
            count = sum(map(len, pieces))
            pieces.append(restore_kept_pixels(kept, frames_to_uint8(frames)[: run.request.num_frames - count], count))
    return write_result(run, pieces, latents)
