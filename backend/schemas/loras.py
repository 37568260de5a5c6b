"""The LoRAs of a request."""

from backend.errors import RequestError
from backend.schemas.numbers import check_count
from presets import LoraChoice, Preset

MAX_LORAS = 8  # most LoRAs of a request, because merging each LoRA takes seconds; we know of no use of more


def check_loras(loras: tuple[LoraChoice, ...], preset: Preset) -> None:
    """Check the number of LoRAs and their experts. Raises: RequestError."""
    check_count("LoRAs", len(loras), MAX_LORAS)
    for lora in loras:
        if lora.expert != "both" and preset.num_experts == 1:
            raise RequestError(
                f"the LoRA {lora.source} is for the {lora.expert}-noise expert, and",
                f"{preset.name} has one network only",
                "leave the expert out",
            )
