"""The part of a request that determines its compiled programs. Requests of the same shape share all programs."""

from dataclasses import dataclass
from typing import Self

from backend.errors import RequestError
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import SETTINGS
from backend.schemas.upscaling import upscaler_name
from presets.loader import Quantize

UPSCALING = "upscale"
UPSCALER = "the upscaler "
"""In the shape of an upscaling step, the task is `UPSCALING`, and the name of the model starts with `UPSCALER`."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The facts that select a set of compiled programs: the checkpoint, the task and its inputs, the video's size, and how steps
    run.

    `is_guided`: some steps run the branch without the prompt. `is_mixed`: some steps are guided and others are not. `is_cached`:
    the step cache is on. `has_nag`: unguided steps attend to the negative prompt. `is_progressive`: the first steps may run at
    half the size. `num_references` and `num_later_keyframes` (keyframes after frame 0) lengthen the latents or tokens. `overlap`:
    number of frames of a clip that the video repeats. `window`: number of frames of a context window, 0 without windows.
    `follows_in_part`: the control clip is weighted below 1, so that its tokens are noisy too.
    """

    model: str
    task: str
    width: int
    height: int
    num_frames: int
    is_guided: bool
    is_mixed: bool = False
    is_cached: bool = False
    has_nag: bool = False
    has_cfg_zero: bool = False
    is_progressive: bool = False
    has_mag_cache: bool = False
    sparse: float = 0.0
    num_pictures: int = 0
    num_references: int = 0
    num_later_keyframes: int = 0
    overlap: int = 0
    window: int = 0
    control_downscale: int = 1
    follows_in_part: bool = False
    quantize: Quantize = "off"

    @classmethod
    def from_request(cls, request: GenerationRequest, model: str | None = None) -> Self:
        """Return the request's shape. If the request only upscales a finished video, return the shape of the upscaling. `model`
        replaces the preset's checkpoint if set."""
        if request.finished_video:
            return cls.for_upscaling(request)
        try:  # all segments of an Animate video run the same programs, so only a segment's length matters
            checkpoint, window, segment = request.resolved_preset.model_source, request.window_frames or 0, request.segment_frames
        except RequestError:  # the preset no longer exists
            checkpoint, window, segment = request.preset, 0, None
        return cls(
            model=model or checkpoint,
            task=request.task,
            width=request.width,
            height=request.height,
            num_frames=segment or request.num_frames,
            is_guided=request.is_guided,
            is_cached=request.step_cache > 0 and not window,
            window=window,
            is_mixed=request.is_guided and request.has_unguided_steps,
            has_nag=request.uses_nag,
            has_cfg_zero=request.cfg_zero,
            is_progressive=request.progressive > 0,
            has_mag_cache=request.mag_cache > 0,
            sparse=request.sparse,
            num_pictures=sum(len(paths) for role, paths in request.inputs().items() if SETTINGS[role].subject != "story"),
            num_references=len(request.references),
            num_later_keyframes=sum(place > 0 for place in request.keyframe_at),
            overlap=request.overlap or 0,
            control_downscale=request.control_downscale,
            follows_in_part=bool(request.control) and request.control_scale < 1,
            quantize=request.quantize,
        )

    @classmethod
    def for_upscaling(cls, request: GenerationRequest) -> Self:
        return cls(
            model=UPSCALER + upscaler_name(request),
            task=UPSCALING,
            width=request.width,
            height=request.height,
            num_frames=request.total_frames,
            is_guided=False,
        )
