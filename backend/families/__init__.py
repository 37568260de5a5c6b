"""The model families: each has a folder here and an entry in `FAMILIES`."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.checkpoints.checkpoint import TRANSFORMER, Checkpoint
from backend.errors import ModelError
from backend.families.causal_wan.action_family import ACTION_WAN
from backend.families.causal_wan.family import CAUSAL_WAN, PIPELINES, TRAINING
from backend.families.causal_wan.family import TRANSFORMER as CAUSAL_TRANSFORMER
from backend.families.family import Family, Kind, refusal
from backend.families.hunyuan.family import HUNYUAN
from backend.families.wan.family import WAN
from backend.families.wan.original import check_transformer, transformer_config
from backend.families.wan_vace.family import WAN_VACE
from presets import Preset

FAMILIES: tuple[Family, ...] = (WAN, CAUSAL_WAN, ACTION_WAN, WAN_VACE, HUNYUAN)


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
    if not checkpoint.own_files:
        return checkpoint
    if _is_causal(checkpoint, preset):
        return _as_causal(checkpoint, preset)
    _check_order(checkpoint)
    for part, file in checkpoint.own_files.items():
        shapes = {name: place.shape for name, place in checkpoint.tensors(part).items()}
        check_transformer(_path_of(file).name, shapes, checkpoint.configs[part])
    return checkpoint


def _is_causal(checkpoint: Checkpoint, preset: Preset | None) -> bool:
    """Whether the file is a causal transformer: no tensor tells. A .pt file is one, a safetensors file if the preset's is."""
    expected = preset.network_configs().get(TRANSFORMER, {}).get("_class_name") if preset else None
    is_marked = checkpoint.index.get("_class_name") in PIPELINES or CAUSAL_TRANSFORMER in (
        expected,
        checkpoint.configs.get(TRANSFORMER, {}).get("_class_name"),
    )
    return is_marked or not isinstance(checkpoint.own_files[TRANSFORMER], Path)


def _as_causal(checkpoint: Checkpoint, preset: Preset | None) -> Checkpoint:
    """With the transformer's configuration: the sizes from its tensors, how it was trained from its config.json if it has one,
    else from the preset's."""
    sizes = transformer_config({name: place.shape for name, place in checkpoint.tensors(TRANSFORMER).items()})
    if sizes is None:
        name = _path_of(checkpoint.own_files[TRANSFORMER]).name
        raise refusal(f"{name} holds no transformer by Wan's own names", [CAUSAL_WAN.supports])
    expected = preset.network_configs().get(TRANSFORMER, {}) if preset else {}
    config = {"_class_name": CAUSAL_TRANSFORMER} | sizes
    own = {TRANSFORMER: config | _training(expected) | _training(checkpoint.configs.get(TRANSFORMER, {}))}
    index = checkpoint.index | {"_class_name": PIPELINES[0]}
    return dataclasses.replace(checkpoint, index=index, configs=checkpoint.configs | own)


def _check_order(checkpoint: Checkpoint) -> None:
    """Raises: ModelError unless there is a file for each of the checkpoint's experts, the high-noise one's first."""
    experts = [part for part in checkpoint.configs if part.startswith(TRANSFORMER)]
    names = [_path_of(file).name for file in checkpoint.own_files.values()]
    if len(experts) != len(names):
        raise ModelError(
            f"--transformer was given for {' and '.join(names)},",
            f"and the model has {len(experts)} transformer{'s' if len(experts) > 1 else ''}",
            "give it twice, the high-noise expert's first" if len(experts) > 1 else "give it once",
        )
    if len(names) == 2 and "low" in names[0].lower() and "high" in names[1].lower():
        raise ModelError(f"{names[0]} was given first,", "but the first is the high-noise expert", "give the two the other way")


def _path_of(file: Any) -> Path:
    return file if isinstance(file, Path) else file.path


def _training(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in TRAINING if name in config}


def of_preset(preset: Preset) -> tuple[Family, Kind]:
    """The family and kind of the preset's own model, from its configurations alone. Raises: ModelError."""
    configs = preset.network_configs()
    for family in FAMILIES:
        if (kind := family.of_preset(preset, configs)) is not None:
            return family, kind
    raise refusal(f"the preset {preset.name} describes none", [family.supports for family in FAMILIES])
