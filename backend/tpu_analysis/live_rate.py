"""The speed of live presets in frames per second, computed from the predicted seconds of their programs."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from backend.models.model import Model
from backend.pipeline.warm_up import calls
from backend.schemas.request import GenerationRequest
from backend.schemas.settings import find_preset


def predict_live_rate(model: Model, request: GenerationRequest, programs: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Predict a live preset's speed and delay.

    Returns: `predicted_frames_per_second`, which assumes that the programs run one after the other, and `predicted_delay_seconds`
    from the start of a block to the block's last frame. New prompts and keys are read at the start of a block. The result is
    empty for presets that are not live, or if a program is missing or does not fit.

    Args:
        programs: the programs of `check-tpu`'s report by key.
    """
    preset = find_preset(request.preset)
    if not preset.live:
        return {}
    longer = request.model_copy(update={"num_frames": request.num_frames + preset.frame_step})
    of_longer, of_request = (
        Counter(call.program.key for call in calls(model, one, ("denoise", "decode"))) for one in (longer, request)
    )
    runs = of_longer - of_request
    if any(programs.get(key, {}).get("predicted_seconds") is None for key in runs):
        return {}
    block = sum(count * programs[key]["predicted_seconds"] for key, count in runs.items())
    return {"predicted_frames_per_second": preset.frame_step / block, "predicted_delay_seconds": block}
