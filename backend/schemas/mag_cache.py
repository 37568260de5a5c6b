"""Select the steps in which MagCache reuses the layers' output of the last full step. A full step runs all layers. The selection
is known before the first step. It depends on measured ratios of the layers' output from step to step. Source: Ma et al. 2025,
arXiv:2506.09045, "MagCache", and its authors' code for models of two experts (Zehong-Ma/MagCache)."""

import functools
import math
from collections.abc import Sequence

from backend.schemas.settings import VideoSettings
from presets.magnitude_files import BranchRatios, Magnitudes, published_magnitudes

REUSED_COST = 0.02
"""Cost of a step that reuses the layers' output, relative to a full step, for estimates. The compiler predicts 0.0012 (14B
parameters, 720p, on a v6e:2x4). The larger value also covers previews and the host's work."""

ContextKey = tuple[int, bool]
"""The properties of a step that MagCache compares: the expert, and whether guidance runs. A step can reuse the previous step's
output only if both steps have the same key."""


def find_magnitudes(request: VideoSettings) -> Magnitudes | None:
    """Return MagCache's ratios: the request's own, or else published ratios for the model, None without any."""
    preset = request.resolved_preset
    published = published_magnitudes(preset.model)
    if request.mag_ratios:
        own: dict[str, BranchRatios] = {
            request.task: BranchRatios(prompt=request.mag_ratios[0::2], other=request.mag_ratios[1::2])
        }
        return published.model_copy(update={"ratios": own}) if published else Magnitudes(source="the request", ratios=own)
    return published if published and request.task in published.ratios else None


def reused_steps(request: VideoSettings, context_keys: Sequence[ContextKey]) -> tuple[bool, ...]:
    """Return one value for each step that runs: True if the step reuses the layers' output of an earlier step."""
    magnitudes = find_magnitudes(request) if request.mag_cache and request.window_frames is None else None
    if magnitudes is None:
        return (False,) * request.num_steps
    branches = magnitudes.ratios[request.task]
    resampled = []  # if the ratios were measured with another number of steps, each step has the nearest ratio
    for one in (branches.prompt, branches.other):
        scale = (len(one) - 1) / max(1, request.steps - 1)
        resampled.append([one[round(step * scale)] for step in range(request.steps)] if request.steps > 1 else [one[-1]])
    ratios = tuple(zip(*resampled, strict=True))[request.steps - request.num_steps :]
    longest = magnitudes.max_reuses_in_a_row(request.mag_cache)
    return _select_reused_steps(
        tuple(context_keys), ratios, request.mag_cache, longest, magnitudes.retention, magnitudes.late_only
    )


@functools.lru_cache(maxsize=64)
def _select_reused_steps(
    context_keys: tuple[ContextKey, ...],
    ratios: tuple[tuple[float, float], ...],
    threshold: float,
    longest: int,
    retention: float,
    late_only: bool,
) -> tuple[bool, ...]:
    """Return one value for each step, by the authors' rule: True if the step reuses the layers' output of an earlier step.

    `ratios` are (prompt branch, other branch) for each step. Let p be the product of the ratios of all steps since the last full
    step. The error of a step is |1 - p|. Steps reuse the output while the sum of the errors since the last full step is below the
    threshold, at most `longest` steps in a row. The two guidance branches run as one batch, so a step reuses the output of both
    branches or of neither. Unlike in the authors' code, errors and products start again at the second expert's first step.
    """
    begins: dict[int, float] = {}  # the first step of each expert that may reuse the layers' output
    for expert in {context_key[0] for context_key in context_keys}:
        own = [step for step, context_key in enumerate(context_keys) if context_key[0] == expert]
        # The formulas multiply by 2, round, and divide by 2, because the authors' code counts both branches of each step.
        if expert and not late_only:
            begins[expert] = math.floor((2 * len(own) * retention + 2 * own[0]) / 2) + 1
        elif late_only and not expert:
            begins[expert] = math.inf
        else:
            begins[expert] = math.ceil(int(2 * own[0] + 2 * len(own) * retention) / 2)
    decided = []
    products, errors, row = (1.0, 1.0), (0.0, 0.0), 0
    for step, context_key in enumerate(context_keys):
        reuses = False
        if step >= begins[context_key[0]] and step and context_keys[step - 1] == context_key:
            products = tuple(product * ratio for product, ratio in zip(products, ratios[step], strict=True))
            errors = tuple(error + abs(1 - product) for error, product in zip(errors, products, strict=True))
            row += 1
            reuses = row <= longest and all(error < threshold for error in errors[: 1 + context_key[1]])
        if not reuses:
            products, errors, row = (1.0, 1.0), (0.0, 0.0), 0
        decided.append(reuses)
    return tuple(decided)
