"""The stage that denoises a video. It reports each step with a preview, saves the state, and resumes."""

import functools
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
from PIL import Image

from backend.files import replace_file
from backend.media.animation import write_animation
from backend.models.model import VIDEO, Latents
from backend.pipeline.decoding import decode_pieces, decode_preview, frames_to_uint8, write_result
from backend.pipeline.denoising_loop import Denoising, can_run_concurrently, should_warm_up
from backend.pipeline.profiling import create_tracer
from backend.pipeline.prompt_schedule import VideoConditions
from backend.pipeline.run import Denoised, PartialVideo, Run
from backend.pipeline.stage_files import read_state, remove_unfinished, write_latents, write_state
from backend.pipeline.state_saver import StateSaver, save_if_closed
from backend.runtime.hosts import gather_to_host
from backend.runtime.work import OnHost, Work
from backend.runtime.work import run as do
from backend.sampling.enlarging import LatentArray, resize_latents
from backend.schemas.events import Event, Step
from backend.schemas.progressive import num_half_size_steps, request_at_first_size
from backend.schemas.step_plan import plan_steps, relative_step_costs

PREVIEW_FOLDER = "previews"
# If a step takes less time than this, its preview is a still image: the next preview would replace an animation before it moves.
ANIMATED_STEP_SECONDS = 0.25
# Assumed decoding time divided by the denoising time, for the estimate of the remaining time. Measured with the demo model.
DECODE_SHARE = 0.15


def denoise_video(run: Run, conditions: VideoConditions) -> Generator[Event, None, Latents]:
    """Denoise the video, or resume from the state that an earlier process stored. Write and return the latents. Raises:
    PartialVideo after a cancel, with the video of the last step's clean estimate, or with None if no step was done."""
    resumed_from = read_state(run.folder, run.request)
    if resumed_from is not None:
        run.notes.append(f"The video was interrupted and resumed after step {resumed_from.steps_done}")
    denoised = yield from denoise(run, conditions, resumed_from)
    if not run.is_cancelled():
        latents = finish_latents(run, conditions, denoised)
        write_latents(run, latents)
        return latents
    result = None
    if denoised.steps_done:
        with run.clock.measure("decode"):
            latents = finish_latents(run, conditions, denoised, clean=True)
            kept, pieces, count = run.kept_pixels, [], 0
            for frames, _ in decode_pieces(run, latents[VIDEO]):
                pixels = frames_to_uint8(frames)[: run.request.num_frames - count]
                pieces.append(pixels if kept is None else kept.put_back(pixels, count))
                count += len(pieces[-1])
        result = write_result(run, pieces, latents)
    remove_unfinished(run.folder)
    raise PartialVideo(result)


def denoise(run: Run, conditions: VideoConditions, resumed_from: Denoised | None = None) -> Generator[Event, None, Denoised]:
    """Run all steps, or the steps that remain after `resumed_from`, until a cancel. A step's preview is created, and its state
    saved, while the next step runs. Closing the generator saves the last step's state."""
    loop, clock = Denoising(run, conditions, resumed_from), run.clock
    if should_warm_up(run.model, run.request):
        loop.warm_up()
    costs = relative_step_costs(run.request) * (loop.total_steps // loop.schedule.steps)
    if resumed_from is not None:
        yield _create_resumed_event(run, resumed_from.steps_done, costs)

    def create_event(index: int, seconds: float, preview: Future[str]) -> Step:
        """Create the step's event once the preview exists. Raises: OSError if the preview could not be written."""
        with clock.measure("denoise"):
            name = preview.result()
        left = _estimate_seconds_left(clock.seconds["denoise"], costs, loop.first_step, index)
        return Step(index, len(costs), seconds, left, name)

    waiting: tuple[int, float, Future[str]] | None = None  # a finished step whose preview may still be unfinished
    spent = clock.seconds["denoise"]  # seconds of denoising up to the end of the previous step
    tracer = create_tracer(run.profile, run.folder, "steps")
    is_beside = can_run_concurrently(run.model, run.request)
    (run.folder / PREVIEW_FOLDER).mkdir(exist_ok=True)
    with ThreadPoolExecutor(1, "preview") as thread, StateSaver(functools.partial(write_state, run)) as saver, tracer:
        while loop.steps_done < loop.total_steps and not run.is_cancelled():
            # A saved state lacks the output that the step cache reuses, so a resumed run must start with a step that computes its
            # own output. Whether a step does so is known only after the step. So the state before it is copied first.
            before = loop.copy_to_host() if run.request.uses_step_cache and saver.is_due() else None
            skipped = loop.skipped_steps
            with tracer.trace_unit(loop.steps_done + 1, loop.wait_for_devices):
                loop.step()
            if waiting is not None:
                with save_if_closed(saver, loop.copy_to_host if loop.can_save_before_next_step else None):
                    yield create_event(*waiting)
            with clock.measure("denoise"):
                shown = loop.current_latents(is_clean=True)[VIDEO]  # waits until the devices have finished the step
                if not run.model.spec.refines:  # models with a network for enlarging also decode half-size latents
                    shown = _resize_latents(run, shown)
            seconds, spent = clock.seconds["denoise"] - spent, clock.seconds["denoise"]
            with clock.measure("denoise"):
                moves = spent > ANIMATED_STEP_SECONDS * (loop.steps_done - loop.first_step)
                preview = _start_preview(run, thread, shown, loop.steps_done, moves)
                if not is_beside:
                    preview.exception()
                if before is not None and loop.skipped_steps == skipped:
                    saver.write(before)
                elif loop.can_save_before_next_step and saver.is_due():
                    saver.save(loop.copy_to_host)
            waiting = loop.steps_done, seconds, preview
        if waiting is not None:
            yield create_event(*waiting)
    _add_notes(run, loop)
    return loop.current_state()


def _add_notes(run: Run, loop: Denoising) -> None:
    request, total, plan = run.request, loop.total_steps, plan_steps(run.request, run.model.spec.boundary)
    if request.window_frames:
        run.notes.append(f"The video was denoised in overlapping windows of {request.window_frames} frames")
    if request.progressive and (small := num_half_size_steps(request)):
        sized = request_at_first_size(request)
        run.notes.append(f"The first {small} of {total} steps ran at {sized.width}x{sized.height}")
    elif request.progressive:
        run.notes.append("No step ran at half the size: with so few steps, even the first one is needed at full size")
    if request.sparse:
        num_sparse = sum(plan[step % len(plan)].is_sparse for step in range(loop.steps_done))
        run.notes.append(_describe_sparse(loop.count_blocks(), num_sparse, total))
    if request.uses_step_cache:
        run.notes.append(f"The step cache saved most of the work of {loop.skipped_steps} of {total} steps")
    if request.mag_cache:
        run.notes.append(f"MagCache reused the work of other steps in {loop.skipped_steps} of {total} steps")
    if run.model.spec.num_experts > 1 and not any(step.expert for step in plan):
        run.notes.append("The low-noise expert was not used, because no step is below its noise level; more steps use it")


def _describe_sparse(counts: tuple[float, float], num_sparse: int, total: int) -> str:
    exact, dropped = counts
    text = f"Sol-Attn approximated the attention in {num_sparse} of {total} steps"
    return f"{text}; {dropped / (exact + dropped):.1%} of the blocks above its threshold had no space" if exact else text


def _create_resumed_event(run: Run, steps_done: int, costs: Sequence[float]) -> Step:
    """Create the event of the last step of an earlier process. Its `seconds` are the mean of that process's steps."""
    spent = run.clock.before.get("denoise", 0.0)
    left = _estimate_seconds_left(spent, costs, 0, steps_done) if steps_done else 0.0
    names = (f"{PREVIEW_FOLDER}/step-{steps_done:03d}.{ending}" for ending in ("webp", "png"))
    preview = next((name for name in names if (run.folder / name).is_file()), None)
    return Step(steps_done, len(costs), spent / max(steps_done, 1), left, preview)


def _estimate_seconds_left(spent: float, costs: Sequence[float], first: int, index: int) -> float:
    """Estimate the seconds of the steps after `index` and of the decoder from the seconds of steps `first` + 1 to `index`."""
    return spent * (sum(costs[index:]) + DECODE_SHARE * sum(costs)) / sum(costs[first:index])


def _start_preview(run: Run, thread: ThreadPoolExecutor, clean: np.ndarray, index: int, moves: bool) -> Future[str]:
    """Start the preview of step `index` from its clean estimate [1, C, F, h, w], animated if `moves`. The future returns the
    file's path relative to the job's folder, or raises OSError. A TPU runs programs in the order of their calls. The decoder's
    call for step k must precede the call of step k + 1, or the preview would wait for that step. So this function returns once
    the decoder was called. Only the first host writes the file."""
    called, path = threading.Event(), Path(PREVIEW_FOLDER, f"step-{index:03d}")

    def write() -> str:
        frames = gather_to_host(do(decode_preview(run, clean)))
        called.set()
        if not run.place.is_first:
            return ""
        first = frames_to_uint8(frames)[0]
        if moves and clean.shape[2] > 1:
            latents_per_second = run.request.fps / run.request.geometry().temporal_scale
            write_animation(clean[0], first, run.folder / f"{path}.webp", latents_per_second)
            return f"{path}.webp"
        with replace_file(run.folder / f"{path}.png") as part:
            Image.fromarray(first).save(part, format="PNG", compress_level=1)
        return f"{path}.png"

    preview = thread.submit(write)
    preview.add_done_callback(lambda _: called.set())  # if the decoder's call fails, `called.wait()` must end too
    called.wait()
    return preview


def finish_latents(run: Run, conditions: VideoConditions, denoised: Denoised, clean: bool = False) -> Latents:
    """Return the whole video's latents at full size, with the inputs' frames, such as a first frame. If `clean`, use the clean
    estimate of the last step. Callers set `clean` if the denoising was stopped early."""

    def work() -> Work:
        latents, own = denoised.join_latents(clean), conditions.select(0)
        if denoised.steps_done - 1 < num_half_size_steps(run.request):
            latents = yield from run.model.finish(own.select_size(is_full=False), latents)
            if run.model.spec.refines:
                video = yield from run.model.enlarge(run.weights, run.request, latents[VIDEO])
            else:
                video = yield OnHost(lambda xp, small: _resize_latents(run, small), (latents[VIDEO],))
            latents = {**latents, VIDEO: video}
        return (yield from run.model.finish(own.select_size(is_full=True), latents))

    return jax.tree.map(np.asarray, do(work()))


def _resize_latents(run: Run, latents: LatentArray) -> LatentArray:
    geometry = run.request.geometry()
    sides = geometry.latent_height, geometry.latent_width
    return latents if latents.shape[-2:] == sides else resize_latents(latents, *sides)
