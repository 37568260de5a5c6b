"""Context windows: a video that is longer than the model's training length is denoised in overlapping windows of latent frames.

All windows of a video have the same length, and each overlaps the next by at least half. Overlaps are blended by weights that
rise and fall linearly. The windows move from step to step, so that edges do not stay in one place. This module has integer
arithmetic and weights only: no arrays, no models.
"""

import dataclasses
from dataclasses import dataclass

from backend.errors import RequestError
from backend.schemas.cfg_zero import num_zero_steps
from backend.schemas.geometry import Geometry, latent_frames
from backend.schemas.progressive import TOKEN_COST_EXPONENT, request_at_first_size
from backend.schemas.settings import VideoSettings
from backend.schemas.step_plan import plan_steps, relative_step_costs
from presets import Preset


@dataclass(frozen=True, kw_only=True)
class Window:
    """A window of latent frames, from `begin`, with a weight for each frame. At every latent frame, the weights of all windows of
    a step add up to 1. `is_first` and `is_last` are true if the window contains the video's first or last latent frame."""

    begin: int
    weights: tuple[float, ...]
    is_first: bool
    is_last: bool


def check_windows(preset: Preset, wanted: bool | None) -> None:
    """Check that the preset's model supports context windows. Raises: RequestError."""
    if wanted and preset.trained_frames is None:
        raise RequestError("context_windows was given", f"but {preset.name} does not support them", "leave it out")


def step_geometry(request: VideoSettings) -> Geometry:
    """Return the shape of the latents that a step's program gets: a window, a segment or the whole video."""
    geometry, length = request.geometry(), request.segment_frames or request.window_frames
    return geometry if length is None else dataclasses.replace(geometry, num_frames=length)


def windows_at(step: int, num_latent_frames: int, length: int) -> tuple[Window, ...]:
    """Return the windows of this step (from 0) in order. The video must have more than `length` latent frames.

    The first and the last window are at the video's ends. In each step, the other windows are shifted by an element of the van
    der Corput sequence times the distance between windows.
    """
    last, stride = num_latent_frames - length, max(1, length // 2)
    shift = int(_van_der_corput(step) * stride)
    begins = sorted({0, last, *range(shift, last, stride)})
    ramps = [_ramp_weights(length, length - stride, begin > 0, begin < last) for begin in begins]
    sums = [0.0] * num_latent_frames
    for begin, ramp in zip(begins, ramps, strict=True):
        for index, weight in enumerate(ramp):
            sums[begin + index] += weight
    return tuple(
        Window(
            begin=begin,
            weights=tuple(weight / sums[begin + index] for index, weight in enumerate(ramp)),
            is_first=begin == 0,
            is_last=begin == last,
        )
        for begin, ramp in zip(begins, ramps, strict=True)
    )


def step_calls(request: VideoSettings) -> list[int]:
    """Return how often each step runs the transformer: once for each window, or once without windows. 0 if CFG-Zero* skips the
    step, or if the step reuses an earlier step's output (MagCache)."""
    geometry, length = request.geometry(), request.window_frames
    if length is None:
        calls = [int(not step.reuses) for step in plan_steps(request)]
    else:
        frames = geometry.num_latent_frames, latent_frames(length, geometry.temporal_scale)
        calls = [len(windows_at(step, *frames)) for step in range(request.num_steps)]
    skipped = num_zero_steps(request)
    return [0] * skipped + calls[skipped:]


def equivalent_tokens(request: VideoSettings) -> int:
    """Return a number of tokens. A plain step with this many tokens takes as long as the request's average step.

    A plain step runs all layers once, on all tokens. The number makes requests comparable by time, even if they use windows,
    half size or MagCache.
    """
    if request.window_frames is None:
        costs = relative_step_costs(request)
        if not costs:
            return 0
        first_tokens = request_at_first_size(request).geometry().num_tokens
        return round(first_tokens * (sum(costs) / len(costs)) ** (1 / TOKEN_COST_EXPONENT))
    return round(step_geometry(request).num_tokens * mean_step_calls(request) ** (1 / TOKEN_COST_EXPONENT))


def mean_step_calls(request: VideoSettings) -> float:
    """Return how often a step runs the transformer, averaged over all steps."""
    return sum(step_calls(request)) / max(request.num_steps, 1)


def _ramp_weights(length: int, overlap: int, rises: bool, falls: bool) -> list[float]:
    """Return a window's unscaled weights: 1 in the middle, and a ramp on each side that overlaps another window.

    `windows_at` scales the weights so that all windows add up to 1 at each frame.
    """
    up = [min(1.0, (index + 1) / (overlap + 1)) if rises else 1.0 for index in range(length)]
    down = [min(1.0, (length - index) / (overlap + 1)) if falls else 1.0 for index in range(length)]
    return [min(pair) for pair in zip(up, down, strict=True)]


def _van_der_corput(number: int) -> float:
    """Return element `number` of the van der Corput sequence 0, 1/2, 1/4, 3/4, 1/8, ...

    For any N, the first N elements are spread evenly over 0 to 1.
    """
    value, share = 0.0, 0.5
    while number:
        value, number, share = value + share * (number & 1), number >> 1, share / 2
    return value
