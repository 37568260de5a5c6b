"""Estimate the time of requests and jobs from the timings of this machine's earlier videos."""

import json
import logging
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from backend.catalog.measured_ratios import add_measured_ratios
from backend.engine.estimate import Estimate, Run, estimate, estimate_upscaling, median_seconds, predicted_seconds, runs_on
from backend.engine.job import ListedJob
from backend.engine.stored_requests import RequestMemo
from backend.engine.tables import TableGroup
from backend.errors import RequestError
from backend.schemas.events import Finished
from backend.schemas.request import GenerationRequest
from backend.schemas.shape import UPSCALING, Shape
from backend.schemas.shots import shot_request
from backend.schemas.upscaling import without_upscaling
from backend.schemas.windows import equivalent_tokens
from backend.schemas.worker import WorkerView
from backend.worker_pool.pool import WorkerPool

MOST_TIMINGS = 500  # older timings are deleted
MOST_ESTIMATES = 1000  # cached estimates

logger = logging.getLogger(__name__)


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

        Return None if the worker's devices are not TPUs of one known kind. `is_model_cached` is True if the model is in memory.
        """
        if request.upscale:
            return self._estimate_upscaled(request, shape, worker, is_warm, is_model_cached)
        if request.shots:
            estimates: list[Estimate] = []
            unfinished = [index for index, shot in enumerate(request.shots) if shot.video is None]
            for index in unfinished:
                shot = shot_request(request, index, request.resolved_preset, "/")
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
