"""Select the steps in which MagCache reuses the layers' output of the last full step. A full step runs all layers.

The selection is known before the first step. It depends on measured ratios of the layers' output from step to step.

Source: Ma et al. 2025, arXiv:2506.09045, "MagCache", and its authors' code for models of two experts (Zehong-Ma/MagCache).
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

from backend.schemas.combinations import check_combinations
from backend.schemas.settings import VideoSettings
from presets.magnitude_files import BranchRatios, Magnitudes, published_magnitudes

REUSED_COST = 0.02
"""Cost of a step that reuses the layers' output, relative to a full step, for estimates. The compiler predicts 0.0012 (14B
parameters, 720p, on a v6e:2x4). The larger value also covers previews and the host's work."""

ContextKey = tuple[int, bool]
"""The properties of a step that MagCache compares: the expert, and whether guidance runs. A step can reuse the previous step's
output only if both steps have the same key."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Rule:
    """The parameters of MagCache's rule for one video. They and each step's `ContextKey` determine which steps reuse output."""

    threshold: float
    longest: int
    retention: float
    late_only: bool
    ratios: tuple[tuple[float, float], ...]  # for each step that runs, the ratios (prompt branch, other branch)


def check_mag_cache(request: VideoSettings) -> None:
    """Check that MagCache can be used. Raises: RequestError."""
    if request.mag_cache:
        check_combinations("mag_cache", request, "step_cache", "cfg_zero", "context windows")


def find_magnitudes(request: VideoSettings) -> Magnitudes | None:
    """Return MagCache's ratios for the request's model: the request's own ratios, or else published ratios. None if no ratios
    exist."""
    preset = request.resolved_preset
    published = published_magnitudes(preset.model)
    if request.mag_ratios:
        own: dict[str, BranchRatios] = {
            request.task: BranchRatios(prompt=request.mag_ratios[0::2], other=request.mag_ratios[1::2])
        }
        return published.model_copy(update={"ratios": own}) if published else Magnitudes(source="the request", ratios=own)
    return published if published and request.task in published.ratios else None


def reused_steps(request: VideoSettings, context_keys: Sequence[ContextKey]) -> tuple[bool, ...]:
    """Return one value for each step that runs: True if the step reuses the layers' output of an earlier step.

    `context_keys` has one `ContextKey` per step.
    """
    magnitudes = find_magnitudes(request) if request.mag_cache and request.window_frames is None else None
    if magnitudes is None:
        return (False,) * request.num_steps
    branches = magnitudes.ratios[request.task]
    resampled = zip(*(_resample_ratios(one, request.steps) for one in (branches.prompt, branches.other)), strict=True)
    ratios = tuple(resampled)[request.steps - request.num_steps :]
    rule = _Rule(
        threshold=request.mag_cache,
        longest=magnitudes.max_reuses_in_a_row(request.mag_cache),
        retention=magnitudes.retention,
        late_only=magnitudes.late_only,
        ratios=ratios,
    )
    return _select_reused_steps(rule, tuple(context_keys))


@functools.lru_cache(maxsize=64)
def _select_reused_steps(rule: _Rule, context_keys: tuple[ContextKey, ...]) -> tuple[bool, ...]:
    """Return one value for each step, by the authors' rule: True if the step reuses the layers' output of an earlier step.

    Let p be the product of the ratios of all steps since the last full step. The error of a step is |1 - p|. Steps reuse the
    output while the sum of the errors since the last full step is below the threshold, at most `longest` steps in a row. The two
    guidance branches run as one batch, so a step reuses the output of both branches or of neither. Unlike in the authors' code,
    errors and products start again at the second expert's first step.
    """
    begins, decided = _first_reusable_steps(rule, context_keys), []
    products, errors, row = (1.0, 1.0), (0.0, 0.0), 0
    for step, context_key in enumerate(context_keys):
        reuses = False
        if step >= begins[context_key[0]] and step and context_keys[step - 1] == context_key:
            products = tuple(product * ratio for product, ratio in zip(products, rule.ratios[step], strict=True))
            errors = tuple(error + abs(1 - product) for error, product in zip(errors, products, strict=True))
            row += 1
            reuses = row <= rule.longest and all(error < rule.threshold for error in errors[: 1 + context_key[1]])
        if not reuses:
            products, errors, row = (1.0, 1.0), (0.0, 0.0), 0
        decided.append(reuses)
    return tuple(decided)


def _first_reusable_steps(rule: _Rule, context_keys: tuple[ContextKey, ...]) -> dict[int, float]:
    """Return the first step of each expert that may reuse the layers' output.

    The formulas multiply by 2, round, and divide by 2, because the authors' code counts both guidance branches of each step.
    """
    found, share = {}, rule.retention
    for expert in {context_key[0] for context_key in context_keys}:
        own = [step for step, context_key in enumerate(context_keys) if context_key[0] == expert]
        if expert and not rule.late_only:
            found[expert] = math.floor((2 * len(own) * share + 2 * own[0]) / 2) + 1
        elif rule.late_only and not expert:
            found[expert] = math.inf
        else:
            found[expert] = math.ceil(int(2 * own[0] + 2 * len(own) * share) / 2)
    return found


def _resample_ratios(ratios: Sequence[float], steps: int) -> list[float]:
    """Return a ratio for each of `steps` steps. If `ratios` were measured with another number of steps, take the nearest
    ratio."""
    if steps == 1:
        return [ratios[-1]]
    scale = (len(ratios) - 1) / (steps - 1)
    return [ratios[round(step * scale)] for step in range(steps)]
