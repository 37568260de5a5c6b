"""Register the family and its preset in this process, as one line in `backend/models/__init__.py` and one file in `presets/` do.

The module is also a worker's pipeline (`--pipeline tests.second_family.registered`), and runs the module of a command:

    python -m tests.second_family.registered backend.cli.check_tpu_run --preset dots-tiny --topology v6e:1x1

The environment variable DOTS_CHECKPOINT names the checkpoint's folder.
"""

from __future__ import annotations

import functools
import os
import runpy
import sys
from pathlib import Path

from backend import models
from presets import loader
from tests.second_family.spec import DOTS, PIPELINE


def register(folder: Path) -> None:
    """Register the family and its preset, which takes two lines in the product."""
    from tests.second_family.checkpoint import NAME, preset_of

    models.FAMILIES = {**models.FAMILIES, PIPELINE: DOTS}
    read, preset = loader._read_presets, preset_of(folder)
    loader._read_presets = functools.cache(lambda place: {**read(place), NAME: preset})


if "DOTS_CHECKPOINT" in os.environ:
    register(Path(os.environ["DOTS_CHECKPOINT"]))
    from backend.pipeline.generate import generate
    from backend.pipeline.load import load
    from backend.pipeline.model_files import check_model as check
    from backend.pipeline.warm_up import warm_up
    from backend.runtime.devices import device_facts
    from tests import fake_pipeline

    __all__ = ["check", "device_facts", "generate", "load", "warm_up"]
    __getattr__ = functools.partial(getattr, fake_pipeline)  # other names come from the stand-in pipeline

if __name__ == "__main__":
    module = sys.argv.pop(1)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
