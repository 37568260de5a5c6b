"""The stand-in pipeline on a made-up machine, whose folder the variable MADE_UP_MACHINE names.

JAX uses the CPU. If the folder has a file `refusal`, device detection raises an error with its text. If the text starts with
"ABORT", the process prints the text and ends. The report about an unused accelerator is the real one.

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
    """Return the CPU, as JAX does if it cannot use the accelerator. Raises: RuntimeError with the text of `refusal`."""
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
    return unused_accelerator.find_unused(devices, _root())
