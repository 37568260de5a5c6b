"""Checks of numbers against a preset. This module opens no file."""

from backend.errors import RequestError
from backend.schemas.geometry import is_frame_count, nearest_values
from presets import Preset
from presets.loader import FEW_STEPS, Solver


def check_size(preset: Preset, width: int, height: int, num_frames: int) -> None:
    """Check the size (pixels) and length (pixel frames). Raises: RequestError."""
    multiple, step, first = preset.size_multiple, preset.frame_step, preset.first_frames
    for name, size, smallest, largest in (
        ("width", width, preset.min_width, preset.max_width),
        ("height", height, preset.min_height, preset.max_height),
    ):
        rules = [f"a multiple of {multiple}"] if size % multiple else []
        rules += [] if smallest <= size <= largest else [f"between {smallest} and {largest}"]
        if rules:
            nearest = " or ".join(map(str, nearest_values(size, multiple, smallest, largest)))
            raise RequestError(f"{name}={size}", f"must be {' and '.join(rules)} for {preset.name}", f"nearest: {nearest}")
    rules = [] if is_frame_count(num_frames, step, first) else [f"{step}n+{first}"]
    if not preset.min_frames <= num_frames <= preset.max_frames:
        rules.append(f"between {preset.min_frames} and {preset.max_frames} for {preset.name}")
    if rules:
        nearest = " or ".join(map(str, nearest_lengths(num_frames, preset)))
        raise RequestError(f"num_frames={num_frames}", f"must be {' and '.join(rules)}", f"nearest: {nearest}")


def nearest_lengths(num_frames: int, preset: Preset) -> list[int]:
    """Return the one or two allowed numbers of pixel frames next to `num_frames`, smaller first."""
    return nearest_values(num_frames, preset.frame_step, preset.min_frames, preset.max_frames, preset.first_frames)


def check_count(what: str, count: int, most: int) -> None:
    """Check the number of things; `what` is their name in the plural. Raises: RequestError."""
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
