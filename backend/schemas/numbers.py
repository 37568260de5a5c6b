"""Checks of a request's numbers against its preset: size, length, steps, guidance and others. This module opens no file."""

import math

from backend.errors import RequestError
from backend.schemas.geometry import is_frame_count, nearest_frame_counts, nearest_sizes
from presets import Preset
from presets.loader import FEW_STEPS, Solver

MAX_FLOW_SHIFT = 100.0


def check_size(preset: Preset, width: int, height: int, num_frames: int) -> None:
    """Check the size (pixels) and length (pixel frames). Raises: RequestError."""
    _check_side("width", width, preset.min_width, preset.max_width, preset)
    _check_side("height", height, preset.min_height, preset.max_height, preset)
    _check_frames(num_frames, preset)


def _check_side(name: str, size: int, smallest: int, largest: int, preset: Preset) -> None:
    rules = []
    if size % preset.size_multiple:
        rules.append(f"a multiple of {preset.size_multiple}")
    if not smallest <= size <= largest:
        rules.append(f"between {smallest} and {largest}")
    if rules:
        nearest = nearest_sizes(size, preset.size_multiple, smallest, largest)
        raise RequestError(f"{name}={size}", f"must be {' and '.join(rules)} for {preset.name}", _format_nearest(nearest))


def _check_frames(num_frames: int, preset: Preset) -> None:
    step, first, rules = preset.frame_step, preset.first_frames, []
    if not is_frame_count(num_frames, step, first):
        rules.append(f"{step}n+{first}")
    if not preset.min_frames <= num_frames <= preset.max_frames:
        rules.append(f"between {preset.min_frames} and {preset.max_frames} for {preset.name}")
    if rules:
        nearest = nearest_lengths(num_frames, preset)
        raise RequestError(f"num_frames={num_frames}", f"must be {' and '.join(rules)}", _format_nearest(nearest))


def nearest_lengths(num_frames: int, preset: Preset) -> list[int]:
    """Return the one or two numbers of pixel frames next to `num_frames` that the preset allows, smaller first."""
    return nearest_frame_counts(num_frames, preset.min_frames, preset.max_frames, preset.frame_step, preset.first_frames)


def check_count(what: str, count: int, most: int) -> None:
    """Check that at most `most` things are given. `what` is their name in the plural. Raises: RequestError."""
    if count > most:
        raise RequestError(f"{count} {what} were given, and", f"at most {most} can be", "leave some out")


def check_range(name: str, value: int, smallest: int, largest: int, usual: int) -> None:
    """Check that a whole number is within its limits. Raises: RequestError."""
    if not smallest <= value <= largest:
        raise RequestError(f"{name}={value}", f"must be between {smallest} and {largest}", f"{usual} is usual")


def check_solver_steps(solver: Solver, steps: int) -> None:
    """Check that a solver with fixed noise levels has a level for each step. Raises: RequestError."""
    most = FEW_STEPS.get(solver, steps)
    if steps > most:
        raise RequestError(f"steps={steps}", f"must be between 1 and {most} for the solver {solver}", f"{most} is usual")


def check_guidance(guidance: tuple[float, ...], preset: Preset) -> None:
    """Check that guidance has one allowed value per expert. Raises: RequestError."""
    usual = ", ".join(f"{value:g}" for value in preset.guidance)
    if len(guidance) != preset.num_experts:
        raise RequestError(
            f"guidance has {len(guidance)} values and",
            f"must have {preset.num_experts}, one per expert of {preset.name}",
            f"{usual} is usual",
        )
    for value in guidance:
        if not (math.isfinite(value) and 0 <= value <= preset.max_guidance):
            raise RequestError(f"guidance={value:g}", f"must be between 0 and {preset.max_guidance:g}", f"{usual} is usual")


def check_flow_shift(flow_shift: float, preset: Preset) -> None:
    """Check that the flow shift is within its limits. Raises: RequestError."""
    if not (math.isfinite(flow_shift) and 0 < flow_shift <= MAX_FLOW_SHIFT):
        raise RequestError(
            f"flow_shift={flow_shift:g}", f"must be above 0 and at most {MAX_FLOW_SHIFT:g}", f"{preset.flow_shift:g} is usual"
        )


def check_guidance_interval(interval: tuple[float, float]) -> None:
    """Check the shares of the steps between which guidance runs. Raises: RequestError."""
    start, end = interval
    if not 0 <= start <= end <= 1:
        raise RequestError(
            f"guidance_interval={start:g},{end:g}",
            "must be two shares of the steps, 0 <= first <= second <= 1",
            "0,1 runs guidance throughout",
        )


def _format_nearest(values: list[int]) -> str:
    return f"nearest: {' or '.join(str(value) for value in values)}"
