"""Helpers for interrupted videos: states after every step, copies of the folder as a kill leaves it, and the comparison of
results.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from backend.media.video import read_frames
from backend.pipeline import decoding, denoising
from backend.pipeline import generate as pipeline
from backend.pipeline.loaded import LoadedModel
from backend.pipeline.stage_files import LATENTS
from backend.pipeline.state_saver import StateSaver
from backend.schemas.request import GenerationRequest


class EagerSaver(StateSaver):
    """A state saver that stores every step and piece, and waits until the file is written."""

    def is_due(self) -> bool:
        return True

    def write(self, state: Mapping[str, Any]) -> None:
        super().write(state)
        self._writing.exception()


def keep_every_state(patch: pytest.MonkeyPatch) -> None:
    """Store the state after every step from here on."""
    for module in (denoising, decoding):
        patch.setattr(module, "StateSaver", EagerSaver)


def make_with_copies(
    request: GenerationRequest, loaded: LoadedModel, folder: Path, copies: Mapping[Path, Callable[[Any], bool]]
) -> list[Any]:
    """Generate the video in `folder` and return its events. Each copy is made at its first matching event, as a kill then would
    leave the folder.
    """
    events = []
    for event in pipeline.generate(request, loaded, folder, lambda: False):
        events.append(event)
        for copy, is_moment in copies.items():
            if is_moment(event) and not copy.exists():
                shutil.copytree(folder, copy)
    assert all(copy.exists() for copy in copies)
    return events


def assert_same_video(one: Path, other: Path) -> None:
    """Require equal latents and pixels."""
    np.testing.assert_array_equal(load_file(one / LATENTS)["latents"], load_file(other / LATENTS)["latents"])
    for left, right in zip(read_frames(one / "video.mp4"), read_frames(other / "video.mp4"), strict=True):
        np.testing.assert_array_equal(left, right)
