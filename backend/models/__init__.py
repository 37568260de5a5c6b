"""The model families: each has a folder here and an entry in `FAMILIES`."""

from backend.checkpoints.checkpoint import Checkpoint
from backend.checkpoints.single_file import file_path
from backend.errors import ModelError
from backend.models.causal_wan.action_spec import ACTION_WAN
from backend.models.causal_wan.spec import CAUSAL_WAN
from backend.models.hunyuan.spec import HUNYUAN
from backend.models.ltx.spec import LTX
from backend.models.spec import Family, Kind, refusal
from backend.models.wan.spec import WAN
from backend.models.wan_animate.posed_spec import WAN_POSED
from backend.models.wan_animate.spec import WAN_ANIMATE
from backend.models.wan_vace.spec import WAN_VACE
from presets import Preset

FAMILIES: tuple[Family, ...] = (WAN, CAUSAL_WAN, ACTION_WAN, WAN_VACE, WAN_ANIMATE, WAN_POSED, HUNYUAN, LTX)
"""A family whose files look like another's comes after that."""


def recognise(checkpoint: Checkpoint) -> tuple[Family, Kind]:
    """The checkpoint's family and kind. Raises: ModelError, which lists the models that are supported."""
    checkpoint = completed(checkpoint)
    for family in FAMILIES:
        if (kind := family.recognise(checkpoint.index, checkpoint.configs)) is not None:
            return family, kind
    raise refusal(f"its pipeline is {checkpoint.index.get('_class_name')}", [family.supports for family in FAMILIES])


def completed(checkpoint: Checkpoint, preset: Preset | None = None) -> Checkpoint:
    """The checkpoint; if its transformers lie in files of their own, looked at, and with what those files say that nothing else
    does. Raises: ModelError if a file holds no transformer of ours, or another than the checkpoint needs."""
    if not checkpoint.transformer_files:
        return checkpoint
    for family in reversed(FAMILIES):
        if (found := family.completed(checkpoint, preset)) is not None:
            return found
    names = " and ".join(file_path(file).name for file in checkpoint.transformer_files.values())
    pipeline = checkpoint.index.get("_class_name")
    raise ModelError(
        f"--transformer was given for {names},", f"and a {pipeline} has its transformer in its folder", "leave it out"
    )


def of_preset(preset: Preset) -> tuple[Family, Kind]:
    """The family and kind of the preset's own model, from its configurations alone. Raises: ModelError."""
    configs = preset.network_configs()
    for family in FAMILIES:
        if (kind := family.of_preset(preset, configs)) is not None:
            return family, kind
    raise refusal(f"the preset {preset.name} describes none", [family.supports for family in FAMILIES])
