"""What all stages of one video share, and what one stage passes to the next."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from backend.contract.events import VideoResult
from backend.contract.request import GenerationRequest, find_preset
from backend.families.model import Model
from backend.pipeline.load import LoadedModel
from backend.pipeline.profiling import Profile
from backend.runtime.refusals import REFUSALS
from backend.sampling.solvers import SamplerState


class WorkClock:
    """Measures seconds by part of the work (load, lora, compile and the stages), for the result."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {"compile": 0.0, "encode": 0.0, "denoise": 0.0, "decode": 0.0}
        self.before: dict[str, float] = {}  # of an earlier process that worked on this video

    def total(self) -> dict[str, float]:
        """The seconds of this process and those before."""
        return {name: self.seconds.get(name, 0.0) + self.before.get(name, 0.0) for name in {**self.seconds, **self.before}}

    @contextlib.contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Adds the time spent inside the block to this part."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One video in the making. `notes` are shown with the result; `grade` changes the finished frames, uint8 [F, H, W, 3] in
    pieces, before they are written.

    Raises: ModelError if the model is of another kind than the request's preset.
    """

    request: GenerationRequest
    loaded: LoadedModel
    folder: Path
    is_cancelled: Callable[[], bool]
    clock: WorkClock = dataclasses.field(default_factory=WorkClock)
    notes: list[str] = dataclasses.field(default_factory=list)
    profile: Profile | None = None
    grade: Callable[[list[np.ndarray]], list[np.ndarray]] = list

    def __post_init__(self) -> None:
        self.loaded.check_preset(find_preset(self.request.preset))

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes, and what the runtime refused, so that the video was made without it."""
        return (*self.notes, *REFUSALS.sentences())

    def result(self, video: Path, num_frames: int, request: GenerationRequest | None = None) -> VideoResult:
        """The result once the mp4 is written. A `request` takes the place of the run's own."""
        request = request or self.request
        return VideoResult(
            path=str(video),
            fps=request.fps,
            num_frames=num_frames,
            width=request.width,
            height=request.height,
            seconds={name: round(value, 3) for name, value in self.clock.total().items()},
            request=request,
            versions=self.loaded.versions,
            notes=self.all_notes,
        )

    @property
    def model(self) -> Model:
        """The model that is loaded."""
        return self.loaded.model


@dataclasses.dataclass(frozen=True, kw_only=True)
class Denoised:
    """The state of a denoising after `steps_done` steps, counted over all chunks: the sampler's `state` in the present chunk, and
    the clean latents of the chunks before it. `spared_steps` of them reused an earlier one's work."""

    state: SamplerState
    steps_done: int
    chunks: tuple[np.ndarray, ...] = ()
    spared_steps: int = 0

    def latents(self, clean: bool) -> np.ndarray:
        """All latents so far: of the last chunk its clean estimate, or the sample that the last step left."""
        last = self.state.clean if clean else self.state.sample
        return np.concatenate([*self.chunks, np.asarray(last)], axis=2)
