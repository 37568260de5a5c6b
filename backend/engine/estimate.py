"""Estimate how long requests and jobs take, from this machine's earlier videos or the published peak performance of its TPUs."""

import dataclasses
import functools
import json
import logging
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

from backend.catalog.measured_ratios import add_measured_ratios
from backend.chips import CHIPS, DEVICE_KINDS
from backend.engine.job import ListedJob
from backend.engine.stored_requests import RequestMemo
from backend.engine.tables import TableGroup
from backend.errors import RequestError
from backend.models import find_family
from backend.schemas.driving_video import count_segments
from backend.schemas.events import Finished
from backend.schemas.progressive import request_at_first_size
from backend.schemas.request import GenerationRequest
from backend.schemas.shape import UPSCALER, UPSCALING, Shape
from backend.schemas.shots import shot_request
from backend.schemas.step_plan import SPARSE_COST, plan_steps
from backend.schemas.upscaling import without_upscaling
from backend.schemas.windows import equivalent_tokens, mean_step_calls
from backend.schemas.worker import Device, WorkerView
from backend.worker_pool.pool import WorkerPool

Basis = Literal["measured", "scaled", "predicted"]
# A step's time grows with this power of the number of tokens. Linear layers grow with power 1 and dominate short videos.
# Attention grows with power 2 and dominates long videos.
_SCALING = 1.5
# In a shorter stage, all programs were already compiled, or the model was already loaded.
_DONE_SECONDS = {"compile": 0.5, "load": 0.2}
MOST_TIMINGS = 500  # older timings are deleted
MOST_ESTIMATES = 1000  # cached estimates

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The timings of a finished video: `seconds` by stage. `device` is the kind of device, "" if not known."""

    shape: Shape
    steps: int
    num_tokens: int
    seconds: dict[str, float]
    device: str = ""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The expected seconds of a video, with parts for compiling and loading: 0 if that is done, None if not known.

    `basis` is "measured" from `runs` runs of the same shape, "scaled" from runs of other shapes of the model, or "predicted" from
    the devices' published peak performance.
    """

    seconds: float
    compile_seconds: float | None
    is_warm: bool
    basis: Basis
    runs: int
    load_seconds: float | None = 0.0


def estimate(
    request: GenerationRequest, shape: Shape, runs: Sequence[Run], is_warm: bool, is_model_cached: bool = True
) -> Estimate | None:
    """Estimate the time of a video from earlier runs. `runs` are newest first. Return None without runs of the same model."""
    same_model = [run for run in runs if run.shape.model == shape.model]
    same = [run for run in same_model if run.shape == shape]
    used = (same or same_model)[:20]
    if not used:
        return None
    tokens, num_pixels = equivalent_tokens(request), _num_pixels(shape)
    totals = []
    for run in used:  # its seconds, except for compiling and loading, scaled to the request's steps and size
        size = (tokens / max(run.num_tokens, 1)) ** _SCALING
        branches = (2 if shape.is_guided else 1) / (2 if run.shape.is_guided else 1)
        step = run.seconds.get("denoise", 0.0) / max(run.steps, 1)
        rest = run.seconds.get("encode", 0.0) + run.seconds.get("decode", 0.0) * num_pixels / max(_num_pixels(run.shape), 1)
        totals.append(step * request.num_steps * size * branches + rest)
    compiling = 0.0 if is_warm else median_seconds("compile", same_model)
    loading = 0.0 if is_model_cached else median_seconds("load", same_model)
    return Estimate(
        seconds=median(totals) + (compiling or 0.0) + (loading or 0.0),
        compile_seconds=compiling,
        is_warm=is_warm,
        basis="measured" if same else "scaled",
        runs=len(used),
        load_seconds=loading,
    )


def estimate_upscaling(shape: Shape, runs: Sequence[Run], num_weights: Callable[[str], int | None]) -> Estimate | None:
    """Estimate the upscaling of a video from the seconds per pixel of earlier runs, newest first. None without usable runs.

    Runs of other upscalers count only if this upscaler has no runs. They are scaled by the number of weights, because each
    weight is used once per pixel.
    """
    every = [run for run in runs if run.shape.task == shape.task]
    same_model = [run for run in every if run.shape.model == shape.model]
    shares = {run.shape.model: 1.0 for run in same_model}
    if not shares and (own := num_weights(shape.model.removeprefix(UPSCALER))):
        counts = {run.shape.model: num_weights(run.shape.model.removeprefix(UPSCALER)) for run in every}
        shares = {name: own / count for name, count in counts.items() if count}
    used = [run for run in same_model or every if run.shape.model in shares][:20]
    if not used:
        return None
    rates = [run.seconds.get("upscale", 0.0) * shares[run.shape.model] / max(_num_pixels(run.shape), 1) for run in used]
    basis = "measured" if any(run.shape == shape for run in used) else "scaled"
    seconds = median(rates) * _num_pixels(shape)
    return Estimate(seconds=seconds, compile_seconds=0.0, is_warm=True, basis=basis, runs=len(used))


def runs_on(device: str, runs: Sequence[Run]) -> list[Run]:
    """Return the runs on this kind of device and the runs on unknown devices. If `device` is "", return all runs."""
    return [run for run in runs if not device or run.device in ("", device)]


def _num_pixels(shape: Shape) -> int:
    return shape.width * shape.height * shape.num_frames


def median_seconds(stage: str, runs: Sequence[Run]) -> float | None:
    """Return the median seconds of a stage in the last 20 runs that needed this stage. None without such runs."""
    seconds = [run.seconds[stage] for run in runs if run.seconds.get(stage, 0.0) > _DONE_SECONDS[stage]]
    return median(seconds[:20]) if seconds else None


def predicted_seconds(request: GenerationRequest, devices: Sequence[Device]) -> float | None:
    """Predict the seconds of the denoising steps on these devices. None if the devices are not TPUs of one known kind."""
    names = {DEVICE_KINDS.get(device.kind) for device in devices}
    name = names.pop() if len(names) == 1 else None
    if name is None:
        return None
    chip = CHIPS[name]
    preset = request.resolved_preset
    family, spec = find_family(preset)
    configs, geometry = preset.network_configs(), request.geometry()

    @functools.cache
    def floor(is_small: bool) -> float:
        sized = request_at_first_size(request) if is_small else request
        flops = family.step_flops(configs, sized, request.num_branches)
        # The compiler predicts nearly the same time for 8-bit matrices as for others, although their peak rate is higher.
        return dataclasses.replace(flops, quantized=0.0).floor_seconds(chip, len(devices))

    floors = sum(floor(step.is_small) * (SPARSE_COST if step.is_sparse else 1.0) for step in plan_steps(request))
    length = geometry.num_latent_frames
    chunks = count_segments(request) if request.drive else -(-length // (spec.chunk or length))
    return spec.over_floor * floors * chunks * mean_step_calls(request)


class Runs(TableGroup):
    """The stored timings of finished videos. Each method is one transaction."""

    def add(self, run: Run) -> None:
        row = (json.dumps(asdict(run.shape)), run.steps, run.num_tokens, json.dumps(run.seconds), run.device)
        with self._tables.transaction() as database:
            database.execute("INSERT INTO timings (shape, steps, tokens, seconds, device) VALUES (?, ?, ?, ?, ?)", row)
            database.execute("DELETE FROM timings WHERE number <= (SELECT MAX(number) FROM timings) - ?", (MOST_TIMINGS,))

    def load(self) -> list[Run]:
        return [
            Run(
                shape=Shape(**json.loads(row["shape"])),
                steps=row["steps"],
                num_tokens=row["tokens"],
                seconds=json.loads(row["seconds"]),
                device=row["device"],
            )
            for row in self._tables.rows("SELECT * FROM timings ORDER BY number DESC")
        ]


class Timings:
    """Estimates from the stored timings, cached until a new timing is stored. `num_weights(name)` is of an upscaler."""

    def __init__(self, runs: Runs, num_weights: Callable[[str], int | None] = lambda name: None):
        self._runs, self._num_weights = runs, num_weights
        self._estimates: dict[tuple, Estimate | None] = {}
        self.count = 0  # number of timings stored since the start
        self._loading: dict[str, float | None] = {}  # seconds to load the model, by checkpoint

    def estimate(
        self, request: GenerationRequest, shape: Shape, worker: WorkerView, is_warm: bool, is_model_cached: bool
    ) -> Estimate | None:
        """Estimate the seconds of a video from earlier timings of the same model, or from the peak of the worker's TPUs.

        Return None without such timings if the worker's devices are not TPUs of one known kind. `is_model_cached` is True if the
        model is in memory.
        """
        if request.upscale:
            return self._estimate_upscaled(request, shape, worker, is_warm, is_model_cached)
        if request.shots:
            estimates: list[Estimate] = []
            preset = request.resolved_preset
            unfinished = [index for index, shot in enumerate(request.shots) if shot.video is None]
            # All requests are made first, so that an invalid shot raises its error even if nothing can be estimated.
            for shot in [shot_request(request, index, preset, "/") for index in unfinished]:
                later = bool(estimates)  # only the estimate of the first shot includes loading and compiling
                shot_shape = Shape.from_request(shot, shape.model)
                made = self.estimate(shot, shot_shape, worker, is_warm or later, is_model_cached or later)
                if made is None:
                    return None
                estimates.append(made)
            return replace(estimates[0], seconds=sum(one.seconds for one in estimates)) if estimates else None
        same = request.model_copy(update={"prompt": "", "seed": 0})  # neither changes the time
        key = (same, shape, is_warm, is_model_cached, worker.device_kind)
        with suppress(KeyError):  # another thread can empty the cache between a test and a read
            return self._estimates[key]
        learned = estimate(request, shape, runs_on(worker.device_kind, self._runs.load()), is_warm, is_model_cached)
        if learned is None and (seconds := predicted_seconds(request, worker.facts.devices)) is not None:
            learned = Estimate(
                seconds=seconds,
                compile_seconds=0.0 if is_warm else None,
                is_warm=is_warm,
                basis="predicted",
                runs=0,
                load_seconds=0.0 if is_model_cached else None,
            )
        if len(self._estimates) >= MOST_ESTIMATES:
            self._estimates.clear()
        self._estimates[key] = learned
        return learned

    def load_seconds(self, model: str) -> float | None:
        """Return the usual seconds to load this checkpoint's model, None if not known."""
        if model not in self._loading:
            try:
                runs = [run for run in self._runs.load() if run.shape.model == model]
                self._loading[model] = median_seconds("load", runs)
            except sqlite3.Error:
                return None
        return self._loading[model]

    def _estimate_upscaled(
        self, request: GenerationRequest, shape: Shape, worker: WorkerView, is_warm: bool, is_model_cached: bool
    ) -> Estimate | None:
        """Estimate the video and its upscaling, or only the upscaling of a finished video."""
        key = (Shape.for_upscaling(request), worker.device_kind)
        try:
            step = self._estimates[key]
        except KeyError:
            runs = runs_on(worker.device_kind, self._runs.load())
            step = self._estimates[key] = estimate_upscaling(key[0], runs, self._num_weights)
        if request.finished_video or step is None:
            return step
        made = self.estimate(without_upscaling(request), shape, worker, is_warm, is_model_cached)
        return made and replace(made, seconds=made.seconds + step.seconds)

    def record_run(self, shape: Shape, event: Finished, device_kind: str) -> None:
        request, seconds = event.result.request, event.result.seconds
        try:
            if request.upscale:
                own = {"upscale": seconds.get("upscale", 0.0)}
                larger = Shape.for_upscaling(request)
                self._runs.add(Run(shape=larger, steps=0, num_tokens=0, seconds=own, device=device_kind))
            if not request.finished_video:
                tokens = equivalent_tokens(request)
                made = {name: value for name, value in seconds.items() if name != "upscale"}
                run = Run(shape=shape, steps=request.num_steps, num_tokens=tokens, seconds=made, device=device_kind)
                self._runs.add(run)
            self._estimates.clear()
            self.count += 1
            self._loading.clear()
        except (sqlite3.Error, RequestError):
            logger.exception("The timings of a video could not be stored")


class Estimates:
    """Estimates for the workers of `pool`. The checkpoint `model`, unless None, replaces the checkpoints of all presets."""

    def __init__(self, timings: Timings, pool: WorkerPool, memo: RequestMemo, model: str | None, magnitudes_dir: Path):
        self._timings, self._pool, self._memo, self._model = timings, pool, memo, model
        self._magnitudes_dir = magnitudes_dir

    def shape(self, request: GenerationRequest) -> Shape:
        return Shape.from_request(request, self._model)

    def is_warm(self, shape: Shape) -> bool:
        """Return whether a worker has compiled all programs of this shape. Always True for upscaling, which compiles quickly."""
        return shape.task == UPSCALING or any(shape in worker.facts.warm for worker in self._pool.workers())

    def estimate(self, request: GenerationRequest) -> Estimate | None:
        """Estimate the request's seconds. Return None without earlier videos and without TPUs."""
        with suppress(RequestError):  # no ratios for MagCache exist, so the estimate counts all steps as full steps
            request = add_measured_ratios(request, self._magnitudes_dir)
        shape = self.shape(request)
        is_kept = shape.model in self._pool.cached_models()
        return self._timings.estimate(request, shape, self._pool.representative_worker(), self.is_warm(shape), is_kept)

    def shape_of_job(self, job: ListedJob) -> Shape:
        """Return `shape` of the job's request. The request is parsed once."""
        return self._memo.value(job, "shape", self.shape)

    def estimate_job(self, job: ListedJob) -> Estimate | None:
        """Return `estimate` of the job's request. The request is parsed again only if the estimate may have changed."""
        shape, worker = self.shape_of_job(job), self._pool.representative_worker()
        is_warm, is_kept = self.is_warm(shape), shape.model in self._pool.cached_models()
        name = "estimate", is_warm, is_kept, worker.device_kind, len(worker.facts.devices), self._timings.count
        return self._memo.value(job, name, self.estimate)
