"""The stand-in pipeline with the real check of a model's files. Every preset except wan-tiny has its model on the tests' Hub.

The engine reaches it by `Engine(..., pipeline="tests.hub_pipeline")`. Brings no JAX.
"""

import functools
from collections.abc import Callable

from backend.pipeline.model_files import check_model
from backend.schemas.events import Event
from presets import Preset
from tests import fake_pipeline
from tests.fake_hub import REPOSITORY

__getattr__ = functools.partial(getattr, fake_pipeline)  # other names come from the stand-in pipeline


def check(preset: Preset, model: str | None, on_event: Callable[[Event], None]) -> None:
    """Check the model's files as the real pipeline does."""
    if preset.name != "wan-tiny":
        check_model(preset.model_copy(update={"model": REPOSITORY}), model, on_event)
