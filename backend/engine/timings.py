"""Estimate the time of videos from the timings of this machine's earlier videos."""

import json
import logging
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace

from backend.engine.estimate import Estimate, Run, estimate, estimate_upscaling, load_seconds, predicted_seconds, runs_on
from backend.engine.scheduling import QueueEntry
from backend.engine.tables import TableGroup
from backend.errors import RequestError
from backend.schemas.events import Finished
from backend.schemas.request import GenerationRequest
from backend.schemas.shape import Shape
from backend.schemas.shots import shot_request
from backend.schemas.upscaling import without_upscaling
from backend.schemas.windows import equivalent_tokens
from backend.schemas.worker import WorkerView

MOST_TIMINGS = 500  # older timings are deleted
MOST_ESTIMATES = 1000  # cached estimates

logger = logging.getLogger(__name__)


class Runs(TableGroup):
    """The stored timings of finished videos. Each method is one transaction."""

    def add(self, run: Run) -> None:
        """Store the timings of a finished video, for estimates."""
        row = (json.dumps(asdict(run.shape)), run.steps, run.num_tokens, json.dumps(run.seconds), run.device)
        with self._tables.transaction() as database:
            database.execute("INSERT INTO timings (shape, steps, tokens, seconds, device) VALUES (?, ?, ?, ?, ?)", row)
            database.execute("DELETE FROM timings WHERE number <= (SELECT MAX(number) FROM timings) - ?", (MOST_TIMINGS,))

    def load(self) -> list[Run]:
        """Return the stored timings of finished videos, newest first."""
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
    """Estimates from the stored timings. Each estimate is cached until a new timing is stored.

    `num_weights(name)` returns the number of weights of an upscaler, None if not known.
    """

    def __init__(self, runs: Runs, num_weights: Callable[[str], int | None] = lambda name: None):
        self._runs, self._num_weights = runs, num_weights
        self._estimates: dict[tuple, Estimate | None] = {}
        self.count = 0  # number of timings stored since the start
        self._loading: dict[str, float | None] = {}  # seconds to load the model, by checkpoint

    def estimate(
        self, request: GenerationRequest, shape: Shape, worker: WorkerView, is_warm: bool, is_model_cached: bool
    ) -> Estimate | None:
        """Estimate the seconds of a video on this worker from earlier timings of the same model.

        Without such timings, use the published peak performance of the worker's TPUs. Return None if the worker's devices are
        not TPUs of one known kind. `is_model_cached` is True if the model is in memory.
        """
        if request.upscale:
            return self._estimate_upscaled(request, shape, worker, is_warm, is_model_cached)
        if request.shots:
            return self._estimate_shots(request, shape, worker, is_warm, is_model_cached)
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
                self._loading[model] = load_seconds(model, self._runs.load())
            except sqlite3.Error:
                return None
        return self._loading[model]

    def _estimate_shots(
        self, request: GenerationRequest, shape: Shape, worker: WorkerView, is_warm: bool, is_model_cached: bool
    ) -> Estimate | None:
        """Estimate all shots of a storyboard together. Only the estimate of the first shot includes loading and compiling."""
        preset = request.resolved_preset
        unfinished = [index for index, shot in enumerate(request.shots) if shot.video is None]
        shots = [shot_request(request, index, preset, "/") for index in unfinished]
        estimates: list[Estimate] = []
        for place, shot in enumerate(shots):
            estimate = self.estimate(
                shot, Shape.from_request(shot, shape.model), worker, is_warm or place > 0, is_model_cached or place > 0
            )
            if estimate is None:
                return None
            estimates.append(estimate)
        if not estimates:
            return None
        return replace(estimates[0], seconds=sum(one.seconds for one in estimates))

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

    def record_run(self, entry: QueueEntry, event: Finished, device_kind: str) -> None:
        """Store the timings of a finished video."""
        request, seconds = event.result.request, event.result.seconds
        try:
            if request.upscale:
                own = {"upscale": seconds.get("upscale", 0.0)}
                shape = Shape.for_upscaling(request)
                self._runs.add(Run(shape=shape, steps=0, num_tokens=0, seconds=own, device=device_kind))
            if not request.finished_video:
                tokens = equivalent_tokens(request)
                made = {name: value for name, value in seconds.items() if name != "upscale"}
                run = Run(shape=entry.shape, steps=request.num_steps, num_tokens=tokens, seconds=made, device=device_kind)
                self._runs.add(run)
            self._estimates.clear()
            self.count += 1
            self._loading.clear()
        except (sqlite3.Error, RequestError):
            logger.exception("The timings of a video could not be stored")
