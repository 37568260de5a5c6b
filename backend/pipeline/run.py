"""The state that all stages of one video share, and the result that denoising passes to decoding."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import ClassVar, cast

import numpy as np

from backend.errors import Stopped
from backend.media.source import KeptPixels, Opened
from backend.models.model import Latents, Model, States, Weights
from backend.models.spec import check_preset
from backend.pipeline.inputs import open_inputs
from backend.pipeline.loaded import LoadedModel
from backend.pipeline.profiling import Profile
from backend.runtime.hosts import Place
from backend.schemas.events import VideoResult
from backend.schemas.request import GenerationRequest


class WorkClock:
    """Measures the seconds of each part of the work on a video, such as "lora", "compile" and the stages."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {"compile": 0.0, "encode": 0.0, "denoise": 0.0, "decode": 0.0}
        self.before: dict[str, float] = {}  # seconds of each part in earlier processes that worked on this video

    def total_seconds(self) -> dict[str, float]:
        """Return the seconds of each part of the work, in this process and in earlier processes together."""
        return {name: self.seconds.get(name, 0.0) + self.before.get(name, 0.0) for name in {**self.seconds, **self.before}}

    @contextlib.contextmanager
    def measure(self, name: str) -> Generator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started


@dataclasses.dataclass(frozen=True, kw_only=True)
class Described:
    """A video whose arrays are replaced by their shapes, in place of a `Run` if programs are only compiled or listed."""

    is_described: ClassVar[bool] = True
    request: GenerationRequest
    model: Model
    clock: WorkClock = dataclasses.field(default_factory=WorkClock)

    @property
    def weights(self) -> Weights:
        return {network.part: network.program_weights for network in self.model.networks}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One video that is being generated. `notes` are shown with the result. `match_colors` changes the colors of the finished
    frames before they are written. Its argument and its result are lists of arrays uint8 [F, H, W, 3], which together are all
    frames of the video. Raises: ModelError if the model is of another kind than the request's preset."""

    is_described: ClassVar[bool] = False
    request: GenerationRequest
    loaded: LoadedModel
    folder: Path
    is_cancelled: Callable[[], bool]
    clock: WorkClock = dataclasses.field(default_factory=WorkClock)
    notes: list[str] = dataclasses.field(default_factory=list)
    profile: Profile | None = None
    match_colors: Callable[[list[np.ndarray]], list[np.ndarray]] = list

    def __post_init__(self) -> None:
        check_preset(self.model.spec, self.request.resolved_preset, "that is loaded")

    @functools.cached_property
    def kept_pixels(self) -> KeptPixels | None:
        """The clip's pixels that must stay unchanged, None if all may change, for both the encoding and the finished frames."""
        request = self.request
        if not request.video or request.strength is not None or not request.keeps_pixels:
            return None
        # The type `Opened` has no DrivingClip. The roles "video" and "mask" never give a DrivingClip, so the cast is safe.
        return KeptPixels(request=request, inputs=cast(Opened, open_inputs(request, roles=("video", "mask"))))

    def create_result(
        self, video: Path, num_frames: int, request: GenerationRequest | None = None, has_sound: bool = False
    ) -> VideoResult:
        """Create the video's result, with `request` or the run's request. `video` is the finished mp4."""
        request = request or self.request
        return VideoResult(
            path=str(video),
            fps=request.fps,
            num_frames=num_frames,
            width=request.width,
            height=request.height,
            has_sound=has_sound,
            seconds={name: round(value, 3) for name, value in self.clock.total_seconds().items()},
            request=request,
            versions=self.loaded.versions,
            notes=(*self.notes, *self.loaded.runtime.fallbacks.sentences()),
        )

    @property
    def model(self) -> Model:
        return self.loaded.model

    @property
    def place(self) -> Place:
        return self.loaded.runtime.place

    @property
    def weights(self) -> Weights:
        return self.loaded.weights


class PartialVideo(Stopped):
    """A stage was cancelled. `result` is the video of the work so far, None if no video could be written."""

    def __init__(self, result: VideoResult | None) -> None:
        super().__init__()
        self.result = result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Denoised:
    """A denoising after `steps_done` steps, counted over all chunks: the sampler's `states` of the current chunk, and the clean
    latents of earlier `chunks`. `skipped_steps` reused an earlier step's output. See `Denoising.count_blocks`."""

    states: States
    steps_done: int
    chunks: tuple[Latents, ...] = ()
    skipped_steps: int = 0
    block_counts: tuple[float, float] = (0.0, 0.0)

    def join_latents(self, clean: bool) -> Latents:
        """Join the latents of all chunks. Use the last chunk's clean estimate if `clean`, otherwise its last sample."""
        last = {name: np.asarray(state.clean if clean else state.sample) for name, state in self.states.items()}
        chunks = (*self.chunks, last)
        return {name: np.concatenate([chunk[name] for chunk in chunks], axis=2) for name in last}
