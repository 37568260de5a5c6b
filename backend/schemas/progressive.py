"""Videos whose first steps run at half the size, and the other steps at the full size. A preset whose `refines` is true enlarges
finished latents with a network and refines them in a few steps. Source: the authors' two stages for LTX-2, as in diffusers'
`LTX2LatentUpsamplePipeline`: the second stage starts at noise level 0.909375. With progressive resolution, the noisy latents are
enlarged when the noise is no longer stronger than the image's details that only the full size can show. Source: Xiao et al. 2026,
"Spectral Progressive Diffusion", arXiv:2605.18736; the levels and the presets' spectra of latents are from SGLang's
documentation, page "Progressive Resolution Generation"."""

import functools
import math

from backend.schemas.noise_levels import noise_levels
from backend.schemas.settings import Settings, VideoSettings
from presets.loader import Solver

REFINING_LEVELS = (0.909375, 0.725, 0.421875)
"""The noise level at the start of each refining step. Source: diffusers, pipelines/ltx2/utils.py, STAGE_2_DISTILLED_SIGMA_VALUES.
"""

TOKEN_COST_EXPONENT = 1.5
"""Assumed: a step's time grows with its tokens to this power, between 1 for projections and 2 for attention."""

TOLERANCES = (0.01, 0.02, 0.05, 0.10)
"""The share of a frequency's power that may be ignored, by level from 1. A larger share gives more steps at half the size."""

HALF = "half."
"""Prefix of the names of inputs and conditions that belong to the half size."""


def num_half_size_steps(request: VideoSettings) -> int:
    """Return how many of the first steps run at half the video's size. At least one step runs at the full size."""
    preset = request.resolved_preset
    if preset.refines:
        return max(0, request.num_steps - len(REFINING_LEVELS))
    if not request.progressive or preset.latent_spectrum is None:
        return 0
    half = _halve_size(request).geometry()
    tolerance = TOLERANCES[request.progressive - 1]
    level = full_size_level(tolerance, preset.latent_spectrum, half.latent_height, half.latent_width)
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


def request_at_first_size(request: Settings) -> Settings:
    """Return the request, or a copy at half the size, rounded up to whole tokens and without progressive resolution."""
    return _halve_size(request) if num_half_size_steps(request) else request


def at_step(request: Settings, step: int) -> Settings:
    """`step` counts from 0."""
    return request_at_first_size(request) if step < num_half_size_steps(request) else request


def _halve_size(request: Settings) -> Settings:
    preset = request.resolved_preset
    token = preset.vae_scale_spatial * preset.patch
    sides = {name: -(-getattr(request, name) // (2 * token)) * token for name in ("width", "height")}
    return request.model_copy(update={**sides, "progressive": 0})
