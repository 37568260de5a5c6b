"""How long a video should take on TPUs where none was made yet: a prediction from published rates, no measurement.

Reads the networks' configurations only.
"""

from collections.abc import Sequence

from backend.architecture import Architecture
from backend.request import GenerationRequest, find_preset
from backend.tpu.chips import CHIPS, DEVICE_KINDS
from backend.tpu.flops import step_flops
from backend.worker_facts import Device

# Derived: check-tpu's predictions over their floors on v6e-8 are 1.19 (14B, 720p) to 1.43 (5B), docs/performance.md.
OVER_FLOOR = 1.3


def predicted_seconds(request: GenerationRequest, devices: Sequence[Device]) -> float | None:
    """Seconds of the denoising steps on these devices; None where they are not TPUs of one kind that we know."""
    names = {DEVICE_KINDS.get(device.kind) for device in devices}
    if len(names) != 1 or None in names:
        return None
    chip = CHIPS[names.pop()]
    architecture = Architecture(**find_preset(request.preset).network_configs())
    flops = step_flops(architecture, request.geometry().num_tokens, 2 if request.is_guided else 1)
    floor = flops.floor_seconds(chip, len(devices), architecture.transformer["attention_head_dim"])
    return OVER_FLOOR * floor * request.steps
