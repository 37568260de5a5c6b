"""The part of a request that compiled programs depend on: requests of one shape share every program. Compiles nothing."""

from dataclasses import dataclass
from typing import Self

from backend.errors import RequestError
from backend.schemas.request import GenerationRequest, find_preset
from backend.schemas.settings import SETTINGS
from backend.schemas.upscaling import upscaler_name

UPSCALING = "upscale"
UPSCALER = "the upscaler "
"""The task of the step that makes a video larger, and what its model's name begins with."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One set of compiled programs: the checkpoint, the task with its pictures, the video's size, and how steps run.

    `is_guided` says that the branch without the prompt runs in some steps, `is_mixed` that other steps run without it;
    `is_cached` that a step may reuse an earlier one's work, `has_nag` that unguided ones attend to the negative prompt too,
    `has_cfg_zero` that guidance is CFG-Zero*'s, `has_mag_cache` that steps are MagCache's, `is_progressive` that the first
    steps may be made at half the size. Each of `num_references` makes the latents longer, and each of `num_later_keyframes`,
    which are not the first frame, may append one; `overlap` are the frames of a clip that the video takes over. `window` are
    the frames of a context window, 0 for a video that is denoised in one piece. A control clip may be seen `control_downscale`
    times smaller; one that is followed in part is noisy itself.
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
    num_pictures: int = 0
    num_references: int = 0
    num_later_keyframes: int = 0
    overlap: int = 0
    window: int = 0
    control_downscale: int = 1
    follows_in_part: bool = False

    @classmethod
    def from_request(cls, request: GenerationRequest, model: str | None = None) -> Self:
        """The request's shape; `model` is the checkpoint that replaces the preset's own, if there is one. Of a finished video
        that is made larger it is that of the step that does so."""
        if request.finished_video:
            return cls.for_upscaling(request)
        checkpoint, window, segment = _preset_facts(request)
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
            num_pictures=sum(len(paths) for role, paths in request.inputs().items() if SETTINGS[role].part != "story"),
            num_references=len(request.references),
            num_later_keyframes=sum(place > 0 for place in request.keyframe_at),
            overlap=request.overlap or 0,
            control_downscale=request.control_downscale,
            follows_in_part=bool(request.control) and request.control_scale < 1,
        )

    @classmethod
    def for_upscaling(cls, request: GenerationRequest) -> Self:
        """The shape of the step that makes the request's video larger."""
        return cls(
            model=UPSCALER + upscaler_name(request),
            task=UPSCALING,
            width=request.width,
            height=request.height,
            num_frames=request.total_frames,
            is_guided=False,
        )


def _preset_facts(request: GenerationRequest) -> tuple[str, int, int]:
    """The preset's checkpoint, the frames of a context window, and those of a driven video's segments, which all run the same
    programs; 0 where there are none. Of a preset that no longer exists, its name alone."""
    try:
        return find_preset(request.preset).model_source, request.window_frames or 0, request.segment_frames or 0
    except RequestError:
        return request.preset, 0, 0
