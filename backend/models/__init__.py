"""The model families. Each family has a folder here and an entry in `FAMILIES`."""

from backend.checkpoints.checkpoint import Checkpoint
from backend.checkpoints.single_file import file_path
from backend.errors import ModelError
from backend.models.causal_wan.action_spec import ACTION_WAN
from backend.models.causal_wan.spec import CAUSAL_WAN
from backend.models.hunyuan.spec import HUNYUAN
from backend.models.ltx.spec import LTX
from backend.models.spec import Family, Kind, unsupported_checkpoint
from backend.models.wan.spec import WAN
from backend.models.wan_animate.posed_spec import WAN_POSED
from backend.models.wan_animate.spec import WAN_ANIMATE
from backend.models.wan_vace.spec import WAN_VACE
from presets import Preset

FAMILIES: tuple[Family, ...] = (WAN, CAUSAL_WAN, ACTION_WAN, WAN_VACE, WAN_ANIMATE, WAN_POSED, HUNYUAN, LTX)
"""All families, in the order in which `recognise` tries them.

`complete_checkpoint` tries them in reverse order. Therefore a family must come after all other families that its files match.
"""


def recognise(checkpoint: Checkpoint) -> tuple[Family, Kind]:
    """Return the checkpoint's family and kind. Raises: ModelError, which lists the supported models, if no family matches."""
    checkpoint = complete_checkpoint(checkpoint)
    for family in FAMILIES:
        if (kind := family.recognise(checkpoint.index, checkpoint.configs)) is not None:
            return family, kind
    raise unsupported_checkpoint(
        f"its pipeline is {checkpoint.index.get('_class_name')}", [family.supports for family in FAMILIES]
    )


def complete_checkpoint(checkpoint: Checkpoint, preset: Preset | None = None) -> Checkpoint:
    """Complete the checkpoint's description with facts from its single-file transformers, such as their configuration.

    A checkpoint without single-file transformers is returned unchanged.
    Raises: ModelError if a file has no supported transformer, or a transformer that does not fit the checkpoint.
    """
    if not checkpoint.transformer_files:
        return checkpoint
    for family in reversed(FAMILIES):
        if (found := family.complete_checkpoint(checkpoint, preset)) is not None:
            return found
    names = " and ".join(file_path(file).name for file in checkpoint.transformer_files.values())
    pipeline = checkpoint.index.get("_class_name")
    raise ModelError(
        f"--transformer was given for {names},", f"but a {pipeline} has its transformer in its own folder", "leave it out"
    )


def find_family(preset: Preset) -> tuple[Family, Kind]:
    """Return the family and kind of a preset's model, from the preset's configurations.

    Raises: ModelError if no family matches.
    """
    configs = preset.network_configs()
    for family in FAMILIES:
        if (kind := family.kind_for_preset(preset, configs)) is not None:
            return family, kind
    raise unsupported_checkpoint(f"no family has the model of {preset.name}", [family.supports for family in FAMILIES])
