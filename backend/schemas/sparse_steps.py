"""Sol-Attn: the steps that run with sparse attention, in presets that were trained with dense attention.

Source: arXiv:2607.24027, and the authors' settings in NVlabs/Sana: the first 10 of 50 steps are dense.
"""

from backend.errors import RequestError
from backend.schemas.combinations import check_combinations
from backend.schemas.settings import VideoSettings
from presets import Preset, list_presets

DENSE_PART = 5  # the first fifth of the steps is dense
SPARSE_COST = 0.6
"""Cost of a sparse step relative to a dense step, for estimates. check-tpu predicts 0.59 at level 1.5, for 14B on v6e:2x4.
Lower levels cost more."""


def num_dense_steps(request: VideoSettings) -> int:
    """Return how many of the steps that run are dense.

    The first fifth of `steps` is dense. A request that restyles a clip leaves out the first steps, so fewer dense steps remain.
    """
    if not request.sparse:
        return request.num_steps
    dense = -(-request.steps // DENSE_PART)
    return max(0, dense - (request.steps - request.num_steps))


def check_sparse(request: VideoSettings, preset: Preset) -> None:
    """Check that Sol-Attn can be used. Raises: RequestError."""
    if not request.sparse:
        return
    if not preset.takes_sparse:
        raise RequestError(
            "sparse was given,", f"and {preset.name} does not support it: {_explain_refusal(preset)}", "leave it out"
        )
    check_combinations("sparse", request, "step_cache", "mag_cache", "cfg_zero", "context windows")


def _explain_refusal(preset: Preset) -> str:
    """Return why the preset's model cannot run with Sol-Attn."""
    method = preset.network_configs().get("transformer", {}).get("sparse_attention")
    if method is None:
        supported = sorted({one.series for one in list_presets() if one.takes_sparse and one.architecture is not None})
        return f"it is for guided presets of {' and '.join(supported)} for text or image to video, without control clips"
    own = f"its model was trained with its own sparse attention ({method})"
    # SSTA has a fixed number of blocks.
    return own if method == "ssta" else f"{own}, and the preset's sparse_keep={preset.sparse_keep:g} sets the share of blocks"
