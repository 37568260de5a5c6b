"""The stand-in pipeline on a machine that is made up, whose folder MADE_UP_MACHINE names: jax takes its CPU, or, if there is a file
`refusal`, raises what stands there, or with "ABORT" at its beginning writes it and ends the process. The notice about an accelerator that is not used is the real one.

The engine reaches it by `Engine(..., pipeline="tests.idle_pipeline")`.
"""

import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from backend.schemas.worker import Device, UnusedAccelerator
from backend.workers import unused_accelerator
from tests import fake_pipeline

__getattr__ = functools.partial(getattr, fake_pipeline)  # other names come from the stand-in pipeline


def _root() -> Path:
    return Path(os.environ["MADE_UP_MACHINE"])


def device_facts() -> list[Device]:
    """As on a machine whose accelerator jax does not take."""
    refusal = _root() / "refusal"
    if refusal.exists():
        text = refusal.read_text("utf-8")
        if text.startswith("ABORT"):
            sys.stderr.write(text)
            sys.stderr.flush()
            os.abort()
        raise RuntimeError(text)
    return [Device(name="TFRT_CPU_0", kind="cpu")]


def find_unused(devices: Sequence[Device] | Exception) -> UnusedAccelerator | None:
    """Of that machine."""
    return unused_accelerator.find_unused(devices, _root())
