"""Context windows: a video that is longer than the model's training length is denoised in overlapping windows of latent frames.
All windows of a video have the same length, and each overlaps the next by at least half. Overlaps are blended by weights that
rise and fall linearly. The windows move from step to step, so that edges do not stay in one place. This module has integer
arithmetic and weights only: no arrays, no models."""

import dataclasses
from dataclasses import dataclass

from backend.schemas.geometry import Geometry, latent_frames
from backend.schemas.progressive import TOKEN_COST_EXPONENT, request_at_first_size
from backend.schemas.settings import VideoSettings
from backend.schemas.step_plan import num_zero_steps, plan_steps, relative_step_costs


@dataclass(frozen=True, kw_only=True)
class Window:
    """A window of latent frames, from `begin`, with a weight for each frame. At every latent frame, the weights of all windows of
    a step add up to 1. The first and the last window contain the video's first and last latent frame."""

    begin: int
    weights: tuple[float, ...]
    is_first: bool
    is_last: bool


def step_geometry(request: VideoSettings) -> Geometry:
    """Return the shape of the latents that a step's program gets: a window, a segment or the whole video."""
    geometry, length = request.geometry(), request.segment_frames or request.window_frames
    return geometry if length is None else dataclasses.replace(geometry, num_frames=length)


def windows_at(step: int, num_latent_frames: int, length: int) -> tuple[Window, ...]:
    """Return the windows of this step (from 0) in order. The video must have more than `length` latent frames. The first and the
    last window are at the video's ends. In each step, the other windows are shifted by an element of the van der Corput sequence
    times the distance between windows."""
    last, stride = num_latent_frames - length, max(1, length // 2)
    shift = int(_van_der_corput(step) * stride)
    begins = sorted({0, last, *range(shift, last, stride)})
    # Unscaled weights: 1 in the middle, and a ramp on each side that overlaps another window.
    rising, flat = [min(1.0, (index + 1) / (length - stride + 1)) for index in range(length)], [1.0] * length
    ramps = [
        [min(pair) for pair in zip(rising if begin > 0 else flat, rising[::-1] if begin < last else flat, strict=True)]
        for begin in begins
    ]
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
    """Return how often each step runs the transformer. 0 if CFG-Zero* skips the step, or if it reuses an earlier step's
    output."""
    geometry, length = request.geometry(), request.window_frames
    if length is None:
        calls = [int(not step.reuses) for step in plan_steps(request)]
    else:
        frames = geometry.num_latent_frames, latent_frames(length, geometry.temporal_scale)
        calls = [len(windows_at(step, *frames)) for step in range(request.num_steps)]
    skipped = num_zero_steps(request)
    return [0] * skipped + calls[skipped:]


def equivalent_tokens(request: VideoSettings) -> int:
    """Return a number of tokens. A plain step with this many tokens, which runs all layers once, takes as long as the request's
    average step. So requests with windows, half size or MagCache are comparable by time."""
    if request.window_frames is None:
        costs = relative_step_costs(request)
        if not costs:
            return 0
        first_tokens = request_at_first_size(request).geometry().num_tokens
        return round(first_tokens * (sum(costs) / len(costs)) ** (1 / TOKEN_COST_EXPONENT))
    return round(step_geometry(request).num_tokens * mean_step_calls(request) ** (1 / TOKEN_COST_EXPONENT))


def mean_step_calls(request: VideoSettings) -> float:
    return sum(step_calls(request)) / max(request.num_steps, 1)


def _van_der_corput(number: int) -> float:
    """Return element `number` of the sequence 0, 1/2, 1/4, 3/4, 1/8, ... Its first N elements are spread evenly over 0 to 1."""
    value, share = 0.0, 0.5
    while number:
        value, number, share = value + share * (number & 1), number >> 1, share / 2
    return value
