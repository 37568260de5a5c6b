"""The model families: each has a folder here and an entry in `FAMILIES`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from backend.checkpoints.checkpoint import TRANSFORMER, Checkpoint
from backend.checkpoints.torch_file import torch_tensors
from backend.families.causal_wan.action_family import ACTION_WAN
from backend.families.causal_wan.family import CAUSAL_WAN, PIPELINES, TRAINING
from backend.families.causal_wan.original import transformer_config
from backend.families.family import Family, Kind, refusal
from backend.families.hunyuan.family import HUNYUAN
from backend.families.wan.family import WAN
from presets import Preset

FAMILIES: tuple[Family, ...] = (WAN, CAUSAL_WAN, ACTION_WAN, HUNYUAN)


def recognise(checkpoint: Checkpoint) -> tuple[Family, Kind]:
    """The checkpoint's family and kind. Raises: ModelError, which lists the models that are supported."""
    checkpoint = completed(checkpoint)
    for family in FAMILIES:
        if (kind := family.recognise(checkpoint.index, checkpoint.configs)) is not None:
            return family, kind
    raise refusal(f"its pipeline is {checkpoint.index.get('_class_name')}", [family.supports for family in FAMILIES])


def completed(checkpoint: Checkpoint, preset: Preset | None = None) -> Checkpoint:
    """The checkpoint; if its transformer lies in a torch file, with that transformer's configuration: the sizes from its tensors,
    how it was trained from its config.json if it has one, else from the preset's. Raises: ModelError if the file holds no
    transformer of ours."""
    if checkpoint.torch_file is None:
        return checkpoint
    config = transformer_config({name: place.shape for name, place in torch_tensors(checkpoint.torch_file).items()})
    if config is None:
        raise refusal(f"{checkpoint.torch_file.path.name} holds no transformer by Wan's own names", [CAUSAL_WAN.supports])
    expected = preset.network_configs().get(TRANSFORMER, {}) if preset else {}
    own = {TRANSFORMER: config | _training(expected) | _training(checkpoint.configs.get(TRANSFORMER, {}))}
    index = checkpoint.index | {"_class_name": PIPELINES[0]}
    return dataclasses.replace(checkpoint, index=index, configs=checkpoint.configs | own)


def _training(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in TRAINING if name in config}


def of_preset(preset: Preset) -> tuple[Family, Kind]:
    """The family and kind of the preset's own model, from its configurations alone. Raises: ModelError."""
    configs = preset.network_configs()
    for family in FAMILIES:
        if (kind := family.of_preset(preset, configs)) is not None:
            return family, kind
    raise refusal(f"the preset {preset.name} describes none", [family.supports for family in FAMILIES])
