"""The preset of a tiny checkpoint of any family, and its registration for requests."""

from pathlib import Path
from typing import Any

import pytest

from backend.schemas import settings
from presets import Preset, load_preset


def tiny_preset(kind: str, folder: Path, side: int, **own: Any) -> Preset:
    """Return wan-tiny's preset with the checkpoint in `folder`, for square videos of this side and nine frames, with the values
    `own`.
    """
    usual = dict(
        name=f"tiny-{kind}",
        series=kind,
        model=str(folder),
        width=side,
        height=side,
        num_frames=9,
        min_width=32,
        min_height=32,
        min_frames=5,
        sizes=[[side, side]],
        max_steps=50,
        trained_frames=None,
        windows_above=None,
        continues=False,
        takes_quantize=not kind.startswith(("hunyuan", "ltx")),
    )
    return Preset(**load_preset("wan-tiny").model_dump() | usual | own)


def find_also(patch: pytest.MonkeyPatch, *presets: Preset) -> dict[str, Preset]:
    """Let requests find these presets by name too while the patch lasts, and all presets that are added to the result."""
    found, others = {preset.name: preset for preset in presets}, settings.load_preset
    patch.setattr(settings, "load_preset", lambda name: found[name] if name in found else others(name))
    return found
