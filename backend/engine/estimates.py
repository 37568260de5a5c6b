"""Estimate the seconds of requests and of jobs on the workers of an engine."""

import contextlib
from pathlib import Path

from backend.catalog.measured_ratios import add_measured_ratios
from backend.engine.estimate import Estimate
from backend.engine.job import ListedJob
from backend.engine.stored_requests import RequestMemo
from backend.engine.timings import Timings
from backend.errors import RequestError
from backend.schemas.request import GenerationRequest
from backend.schemas.shape import UPSCALING, Shape
from backend.worker_pool.pool import WorkerPool


class Estimates:
    """Estimates for the workers of `pool`. The checkpoint `model`, unless None, replaces the checkpoints of all presets.
    `magnitudes_dir` contains the ratios for MagCache that the command `measure-cache` stored."""

    def __init__(self, timings: Timings, pool: WorkerPool, memo: RequestMemo, model: str | None, magnitudes_dir: Path):
        self._timings, self._pool, self._memo, self._model = timings, pool, memo, model
        self._magnitudes_dir = magnitudes_dir

    def shape(self, request: GenerationRequest) -> Shape:
        """Return the shape of the request, which selects the programs to compile."""
        return Shape.from_request(request, self._model)

    def is_warm(self, shape: Shape) -> bool:
        """Return whether a worker has compiled all programs of this shape. Always True for upscaling, which compiles quickly."""
        return shape.task == UPSCALING or any(shape in worker.facts.warm for worker in self._pool.workers())

    def estimate(self, request: GenerationRequest) -> Estimate | None:
        """Estimate the request's seconds from this machine's earlier videos, else from its TPUs' published peak performance.

        Return None without earlier videos and without TPUs.
        """
        with contextlib.suppress(RequestError):  # no ratios for MagCache exist, so the estimate counts all steps as full steps
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
