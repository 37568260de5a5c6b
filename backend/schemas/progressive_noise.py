"""Progressive resolution: the first steps are made at half the size, where the frequencies that only the full size has are noise.

Source: Xiao et al. 2026, "Spectral Progressive Diffusion", arXiv:2605.18736; the levels, and the presets' spectra of
latents, are those of SGLang's documentation, page "Progressive Resolution Generation".
"""

import functools
import math

from backend.errors import RequestError
from backend.schemas.noise_levels import noise_levels
from backend.schemas.settings import VideoSettings, find_preset
from presets import Preset
from presets.loader import Solver

TOLERANCES = (0.01, 0.02, 0.05, 0.10)
"""How much of the power of a frequency may be left out before it counts, by level, from 1 on: more of it, more small steps."""


def check_progressive(request: VideoSettings, preset: Preset) -> None:
    """Raises: RequestError where it cannot be used."""
    if not request.progressive:
        return
    if not preset.takes_progressive:
        raise RequestError("progressive was given,", f"and {preset.name} makes all steps at one size", "leave it out")
    for name, is_there, fix in (
        ("a clip", request.video is not None, "leave one of them out"),
        ("a storyboard", bool(request.shots), "leave it out"),
        ("mag_cache", request.mag_cache > 0, "leave one of them out"),
        ("context windows", request.window_frames is not None, "make the video shorter, or in one piece with --no-windows"),
    ):
        if is_there:
            raise RequestError("progressive", f"does not go together with {name}", fix)


def count_half_size_steps(request: VideoSettings, rows: int, columns: int) -> int:
    """How many of the first steps are made at half the size, whose latents have so many rows and columns. One at least is made at
    the full size."""
    spectrum = find_preset(request.preset).latent_spectrum
    if not request.progressive or spectrum is None:
        return 0
    level = full_size_level(TOLERANCES[request.progressive - 1], spectrum, rows, columns)
    return _count_steps_above(level, request.solver, request.num_steps, request.flow_shift)


def full_size_level(tolerance: float, spectrum: tuple[float, float], rows: int, columns: int) -> float:
    """The noise level at and below which the full size counts: there the highest frequency of the half size is no longer mere
    noise. The power of latents at so many cycles a picture is A * cycles ** -b, where noise has 1; `spectrum` is A and b.

    Source: the paper's criterion for when a frequency is active.
    """
    scale, exponent = spectrum
    power = scale * max(1, min(rows, columns) // 2) ** -exponent
    return 1 / (1 + math.sqrt(tolerance / (power * (1 + power - tolerance))))


@functools.lru_cache(maxsize=256)
def _count_steps_above(level: float, solver: Solver, steps: int, flow_shift: float) -> int:
    above = noise_levels(solver, steps, flow_shift) > level
    return min(int(above.sum()), steps - 1)
