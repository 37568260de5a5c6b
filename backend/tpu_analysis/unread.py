"""Include unread arrays in the report of `check-tpu`: arrays that stay on a chip, but that the running program does not read."""

from typing import Any

from backend.models.model import Model
from backend.pipeline.memory import unread_bytes
from backend.schemas.request import GenerationRequest


def include_unread_bytes(report: dict[str, Any], model: Model, request: GenerationRequest) -> dict[str, Any]:
    """Return the report with `hbm_bytes_per_device` and `fits` computed again, with the bytes of the unread arrays."""
    unread, resident = unread_bytes(model, request), sum(report["weight_bytes_per_device"].values())
    peak = max(
        cost["hbm_bytes_per_device"] + resident - cost["weight_argument_bytes"] + unread.get(key, 0)
        for key, cost in report["components"].items()
    )
    return report | {"hbm_bytes_per_device": peak, "fits": report["fits"] and peak <= report["hbm_capacity_bytes"]}
