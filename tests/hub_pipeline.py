"""The stand-in pipeline behind the real look at a model's files: every preset but the demo's has its model on the tests' Hub.

The engine reaches it by `Engine(..., pipeline="tests.hub_pipeline")`. Brings no JAX.
"""

from collections.abc import Callable

from backend.contract.events import Event
from backend.pipeline.model_files import check_model
from presets import Preset
from tests.fake_hub import REPOSITORY
from tests.fake_pipeline import device_facts, excuse, find_unused, generate, live, load, recall, refusals, warm_up, would_fit

__all__ = [
    "check",
    "device_facts",
    "excuse",
    "find_unused",
    "generate",
    "live",
    "load",
    "recall",
    "refusals",
    "warm_up",
    "would_fit",
]


def check(preset: Preset, model: str | None, on_event: Callable[[Event], None]) -> None:
    """As the real one does."""
    if preset.name != "wan-tiny":
        check_model(preset.model_copy(update={"model": REPOSITORY}), model, on_event)
