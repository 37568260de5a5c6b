"""Progressive resolution: the first steps run at half the size, as long as the noise is stronger than the image's details that
only the full size can show.

Source: Xiao et al. 2026, "Spectral Progressive Diffusion", arXiv:2605.18736. The levels and the presets' spectra of latents are
from SGLang's documentation, page "Progressive Resolution Generation".
"""

import functools
import math

from backend.errors import RequestError
from backend.schemas.combinations import check_combinations
from backend.schemas.noise_levels import noise_levels
from backend.schemas.settings import VideoSettings
from presets.loader import FEW_STEPS, Solver

TOLERANCES = (0.01, 0.02, 0.05, 0.10)
"""The share of a frequency's power that may be ignored, by level from 1. A larger share gives more steps at half the size."""


def check_progressive(request: VideoSettings) -> None:
    """Check that progressive resolution can be used. Raises: RequestError."""
    if not request.progressive:
        return
    if request.solver in FEW_STEPS:
        raise RequestError("progressive", f"cannot be combined with the solver {request.solver}", "leave it out")
    check_combinations("progressive", request, "mag_cache", "context windows")


def count_half_size_steps(request: VideoSettings, rows: int, columns: int) -> int:
    """Return how many of the first steps run at half the size. At least one step runs at the full size.

    `rows` and `columns` are the height and width of the half-size latents.
    """
    spectrum = request.resolved_preset.latent_spectrum
    if not request.progressive or spectrum is None:
        return 0
    level = full_size_level(TOLERANCES[request.progressive - 1], spectrum, rows, columns)
    return _count_steps_above(level, request.solver, request.num_steps, request.flow_shift)


def full_size_level(tolerance: float, spectrum: tuple[float, float], rows: int, columns: int) -> float:
    """Return the noise level at which the full size becomes needed. The full size is also needed at all lower levels.

    At a frequency of `cycles` cycles per image side, latents have the power P = A * cycles ** -b, and noise has the power 1.
    Noisy latents at level sigma are (1 - sigma) * latents + sigma * noise. P is computed at the highest frequency of the half
    size. The returned sigma solves (1 - sigma) ** 2 * P = sigma ** 2 * tolerance / (1 + P - tolerance).

    `tolerance` is the share of a frequency's power that may be ignored. `spectrum` is (A, b). `rows` and `columns` are the height
    and width of the half-size latents. Source: the paper's criterion for active frequencies.
    """
    scale, exponent = spectrum
    power = scale * max(1, min(rows, columns) // 2) ** -exponent
    return 1 / (1 + math.sqrt(tolerance / (power * (1 + power - tolerance))))


@functools.lru_cache(maxsize=256)
def _count_steps_above(level: float, solver: Solver, steps: int, flow_shift: float) -> int:
    above = noise_levels(solver, steps, flow_shift) > level
    return min(int(above.sum()), steps - 1)
