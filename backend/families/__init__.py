"""The model families: each has a folder here and an entry in `FAMILIES`."""

from backend.checkpoints.checkpoint import Checkpoint
from backend.families.causal_wan.action_family import ACTION_WAN
from backend.families.causal_wan.family import CAUSAL_WAN
from backend.families.family import Family, Kind, refusal
from backend.families.hunyuan.family import HUNYUAN
from backend.families.wan.family import WAN
from presets import Preset

FAMILIES: tuple[Family, ...] = (WAN, CAUSAL_WAN, ACTION_WAN, HUNYUAN)


def recognise(checkpoint: Checkpoint) -> tuple[Family, Kind]:
    """The checkpoint's family and kind. Raises: ModelError, which lists the models that are supported."""
    for family in FAMILIES:
        if (kind := family.recognise(checkpoint.index, checkpoint.configs)) is not None:
            return family, kind
    raise refusal(f"its pipeline is {checkpoint.index.get('_class_name')}", [family.supports for family in FAMILIES])


def of_preset(preset: Preset) -> tuple[Family, Kind]:
    """The family and kind of the preset's own model, from its configurations alone. Raises: ModelError."""
    configs = preset.network_configs()
    for family in FAMILIES:
        if (kind := family.of_preset(preset, configs)) is not None:
            return family, kind
    raise refusal(f"the preset {preset.name} describes none", [family.supports for family in FAMILIES])
