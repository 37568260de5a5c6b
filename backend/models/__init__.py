"""The model families. Each family has a folder here and an entry in `FAMILIES`."""

from collections.abc import Mapping
from pathlib import Path

from backend.checkpoints.checkpoint import Checkpoint
from backend.models.causal_wan.action_spec import ACTION_WAN
from backend.models.causal_wan.spec import CAUSAL_WAN, is_causal
from backend.models.hunyuan.spec import HUNYUAN
from backend.models.ltx.spec import LTX
from backend.models.spec import Family, ModelSpec, no_single_files, unsupported_checkpoint
from backend.models.wan.spec import WAN
from backend.models.wan_animate.posed_spec import WAN_POSED
from backend.models.wan_animate.spec import WAN_ANIMATE
from backend.models.wan_vace.spec import WAN_VACE
from presets import Preset

FAMILIES: Mapping[str, Family] = {
    pipeline: family
    for family in (WAN, CAUSAL_WAN, ACTION_WAN, WAN_VACE, WAN_ANIMATE, WAN_POSED, HUNYUAN, LTX)
    for pipeline in family.pipelines
}
"""The family of each pipeline's class name, which is `_class_name` in a checkpoint's model_index.json."""


def recognise(checkpoint: Checkpoint) -> tuple[Family, ModelSpec]:
    """Return the checkpoint's family and spec. Raises: ModelError, with a list of supported models, if no family fits."""
    checkpoint = complete_checkpoint(checkpoint)
    pipeline = checkpoint.index.get("_class_name", "")
    if (family := FAMILIES.get(pipeline)) is None:
        supported = dict.fromkeys(family.supports for family in FAMILIES.values())
        raise unsupported_checkpoint(f"its pipeline is {pipeline or None}", [*supported])
    return family, family.read_spec(checkpoint.index, checkpoint.configs)


def complete_checkpoint(checkpoint: Checkpoint, preset: Preset | None = None) -> Checkpoint:
    """Complete the checkpoint's description with facts that only the tensors of its transformers show.

    One such fact is the configuration of a single-file transformer. Single files without a model_index.json are read as Wan or
    causal Wan. Raises: ModelError if a file has no supported transformer, or a transformer that does not fit the checkpoint.
    """
    if not checkpoint.transformer_files:
        family = FAMILIES.get(checkpoint.index.get("_class_name", ""))
        return checkpoint if family is None else family.complete_folder(checkpoint)
    family = FAMILIES.get(checkpoint.index.get("_class_name") or WAN.pipelines[0])
    if family is WAN and is_causal(checkpoint, preset):
        family = CAUSAL_WAN
    if family is None:
        raise no_single_files(checkpoint)
    return family.complete_checkpoint(checkpoint, preset)


def find_family(preset: Preset) -> tuple[Family, ModelSpec]:
    """Return the family and spec of a preset's model. The weights are not needed. Raises: ModelError if no family supports it."""
    index, configs = preset.checkpoint_index(), preset.network_configs()
    return recognise(Checkpoint(folder=Path(preset.model_source), index=index, configs=configs))
