"""Upscale a finished video: the last stage of a video with `upscale`. Frames are read in batches, so memory does not grow with
the video's length. The smaller video with its result, and the finished pieces, are in the job's folder for a resumed process."""

import contextlib
import dataclasses
import functools
import json
import platform
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import jax
import numpy as np

from backend.checkpoints.upscalers import UpscalerFile, find_upscaler
from backend.errors import RequestError
from backend.files import remove_half_written, replace_file
from backend.imports import installed_version
from backend.media.clips import read_clip
from backend.media.pieces import Pieces, PieceWriter
from backend.media.video import FORMAT
from backend.pipeline.load import use_compilation_cache
from backend.pipeline.run import WorkClock
from backend.pipeline.upscaler import Tiling, Upscaler, read_model
from backend.runtime.context import RuntimeContext
from backend.schemas.clip import Part
from backend.schemas.events import VIDEO_FILE, Cancelled, Compiling, Event, Finished, Loading, Upscaling, VideoResult
from backend.schemas.request import GenerationRequest
from backend.schemas.upscaling import upscaler_name, without_upscaling
from backend.settings import from_environment

SMALLER, RESULT = "stage3_video.mp4", "stage3_video.json"
PIECES = "stage4_pieces"
# Time after which a piece is finished and the next piece starts. A killed process loses at most the work since then.
PIECE_SECONDS = 20.0
EVENT_SECONDS = 0.2  # minimum time between two progress events, because the engine stores every event
KEPT_MODELS = 2
READY = "upscaler"  # key under which the seconds for loading and compiling the upscaler are reported
LIBRARIES = ("jax", "jaxlib", "torch", "torchax", "spandrel")

MakeSmaller = Callable[[GenerationRequest], Generator[Event]]


def upscale_video(
    request: GenerationRequest,
    folder: Path,
    is_cancelled: Callable[[], bool],
    make_smaller: MakeSmaller,
    runtime: RuntimeContext | None = None,
) -> Generator[Event]:
    """Generate the request's video at its original size with `make_smaller`, unless it exists already, and upscale it in
    `folder`. Ends with Finished, or with Cancelled, with the smaller video if this job generated it. Closing the iterator saves
    the work so far. Raises: RequestError for a scale that the model lacks, or on several hosts; ModelError, ClipError,
    VideoFileError."""
    runtime = runtime or RuntimeContext()
    if not runtime.place.is_alone:
        raise RequestError("upscale was given", "to a worker on several hosts, which cannot upscale", "use one host")
    folder.mkdir(parents=True, exist_ok=True)
    clock = WorkClock()
    # The upscaler is loaded before the video is generated, so that its errors are reported at once.
    yield Loading(0, 0, "the upscaler")
    with clock.measure(READY):
        file = find_upscaler(upscaler_name(request), from_environment().upscalers_dir)
        status = file.path.stat()
        upscaler = _cached_upscaler(file.name, file.path, tuple(file.modules), status.st_size, status.st_mtime_ns, runtime)
    upscaler.check_scale(request.upscale, upscaler_name(request))
    larger = functools.partial(_upscale_file, request, folder, is_cancelled, upscaler, clock)
    if request.finished_video:
        yield from larger(Path(request.finished_video), None)
        return
    smaller_request = without_upscaling(request)
    try:
        stored = VideoResult.from_json(json.loads((folder / RESULT).read_text("utf-8")))
    except (OSError, ValueError, LookupError):
        stored = None
    is_there = stored and (folder / SMALLER).is_file() and stored.request.for_sharing() == smaller_request.for_sharing()
    smaller_result = stored if is_there else None
    if smaller_result is None:
        with contextlib.closing(make_smaller(smaller_request)) as events:
            for event in events:
                if not isinstance(event, Finished):
                    yield event
                    continue
                smaller_result = event.result
                with replace_file(folder / RESULT, is_durable=True) as part:
                    part.write_text(json.dumps(smaller_result.to_json(), ensure_ascii=False), "utf-8")
                (folder / VIDEO_FILE).replace(folder / SMALLER)
                break
    if smaller_result is not None:
        yield from larger(folder / SMALLER, smaller_result)


def _upscale_file(
    request: GenerationRequest,
    folder: Path,
    is_cancelled: Callable[[], bool],
    upscaler: Upscaler,
    clock: WorkClock,
    source: Path,
    smaller_result: VideoResult | None,
) -> Generator[Event]:
    """Upscale the video in the file `source`. `smaller_result` is its result, None if this job did not generate it."""
    total = request.total_frames
    remove_half_written(folder)
    pieces = Pieces(folder / PIECES, request)
    first = pieces.open_folder()
    tiling = upscaler.plan_tiling(request.height, request.width)
    batch = upscaler.choose_batch_size(tiling, total)
    if not upscaler.is_ready(tiling, request.upscale, batch):
        yield Compiling("the upscaler")
        with clock.measure(READY):
            upscaler.compile_program(tiling, request.upscale, batch)
    work = functools.partial(upscaler.upscale_frames, tiling=tiling, scale=request.upscale, batch=batch)
    done = yield from _write_frames(request, source, pieces, first, work, clock, is_cancelled)
    if done < total:
        shutil.rmtree(folder / PIECES, ignore_errors=True)
        if smaller_result is not None:
            (folder / SMALLER).replace(folder / VIDEO_FILE)
            (folder / RESULT).unlink(missing_ok=True)
        yield Cancelled(smaller_result)
        return
    with clock.measure("upscale"):
        by = {"by": upscaler_name(request), "from": [request.width, request.height], "scale": request.upscale}
        comment = json.dumps({"format": FORMAT, "request": request.for_sharing(), "upscaled": by}, ensure_ascii=True)
        has_sound = pieces.join(folder / VIDEO_FILE, source, comment, total / request.fps)
        shutil.rmtree(folder / PIECES)
        for name in (SMALLER, RESULT):
            (folder / name).unlink(missing_ok=True)
    result = _create_result(request, smaller_result, clock, tiling, upscaler.layout.runtime)
    yield Finished(dataclasses.replace(result, path=str(folder / VIDEO_FILE), has_sound=has_sound))


@functools.lru_cache(maxsize=KEPT_MODELS)
def _cached_upscaler(
    name: str, path: Path, modules: tuple[str, ...], size: int, changed: int, runtime: RuntimeContext
) -> Upscaler:
    """Load the model of this file onto all devices. `size` and `changed` (the time of the last change) are parts of the cache's
    key, so that the model is loaded again if the file changes."""
    use_compilation_cache()
    return Upscaler(read_model(UpscalerFile(name=name, path=path, modules=modules)), jax.devices(), runtime=runtime)


def _write_frames(
    request: GenerationRequest,
    source: Path,
    pieces: Pieces,
    first: int,
    work: Callable[[Iterator[np.ndarray]], Iterator[np.ndarray]],
    clock: WorkClock,
    is_cancelled: Callable[[], bool],
) -> Generator[Event, None, int]:
    """Write the upscaled frames in pieces, from frame `first` on. Return the number of written frames, with earlier frames."""
    total, start_time, reported, done = request.total_frames, time.monotonic(), 0.0, first
    yield Upscaling(done, total)
    if done == total:
        return done
    part = dataclasses.replace(Part.from_request(request, "finished_video"), start=first / request.fps, num_frames=total - first)
    with contextlib.closing(read_clip(source, part)) as frames:
        larger = work(frames)
        while done < total and not is_cancelled():
            with PieceWriter(pieces, done) as piece:
                is_whole, end = False, time.monotonic() + PIECE_SECONDS
                while not is_whole:
                    with clock.measure("upscale"):
                        piece.put(next(larger))
                    done += 1
                    if time.monotonic() - reported > EVENT_SECONDS or done == total:
                        reported = time.monotonic()
                        yield Upscaling(done, total, (reported - start_time) / (done - first) * (total - done))
                    is_whole = done == total or time.monotonic() >= end or is_cancelled()
    return done


def _create_result(
    request: GenerationRequest, smaller_result: VideoResult | None, clock: WorkClock, tiling: Tiling, runtime: RuntimeContext
) -> VideoResult:
    width, height = request.final_size
    note = f"The video was upscaled {request.upscale} times by {upscaler_name(request)}, from {request.width}x{request.height}"
    tiled = [f"Each frame was upscaled in {tiling.num_tiles} tiles"] if tiling.num_tiles > 1 else []
    before = smaller_result.seconds if smaller_result else {}
    seconds = {name: before.get(name, 0.0) + clock.seconds.get(name, 0.0) for name in {**before, **clock.seconds}}
    own = {"python": platform.python_version()} | {name: installed_version(name) for name in LIBRARIES}
    result = smaller_result or VideoResult(
        path="", fps=request.fps, num_frames=0, width=0, height=0, seconds={}, request=request, versions={},
        notes=runtime.fallbacks.sentences(),
    )  # fmt: skip
    return dataclasses.replace(
        result,
        request=request,
        width=width,
        height=height,
        num_frames=request.total_frames,
        seconds={name: round(value, 3) for name, value in seconds.items()},
        versions=own | result.versions,
        notes=(*result.notes, note, *tiled),
    )
