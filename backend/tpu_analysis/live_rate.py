"""How many frames a second a live video will be made at, from the predicted seconds of its programs."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from backend.models.model import Model
from backend.pipeline.warm_up import calls
from backend.schemas.request import GenerationRequest, find_preset


def live_rate(model: Model, request: GenerationRequest, programs: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Of a live preset: `predicted_frames_per_second`, with the programs one after the other, and `predicted_delay_seconds`, from
    the beginning of a block, where what is said is heard, to its last frame. `programs` are those of `check-tpu`'s report by key.
    Nothing for other presets, and if a program of a block is not among these or does not fit."""
    preset = find_preset(request.preset)
    if not preset.live:
        return {}
    longer = request.model_copy(update={"num_frames": request.num_frames + preset.frame_step})
    runs = _runs(model, longer) - _runs(model, request)
    if any(programs.get(key, {}).get("predicted_seconds") is None for key in runs):
        return {}
    block = sum(count * programs[key]["predicted_seconds"] for key, count in runs.items())
    return {"predicted_frames_per_second": preset.frame_step / block, "predicted_delay_seconds": block}


def _runs(model: Model, request: GenerationRequest) -> Counter[str]:
    """How often each program runs after the inputs are encoded."""
    return Counter(call.program.key for call in calls(model, request, ("denoise", "decode")))
