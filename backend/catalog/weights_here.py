"""Check whether the weights that a request needs are on this machine. Only the operator may start downloads.

These checks run for every request and every page. Therefore they read only a few small files and never use the network.
"""

from pathlib import Path

from backend.checkpoints.checkpoint import Checkpoint, is_checkpoint, open_checkpoint, split_source
from backend.checkpoints.single_file import parse_file_source
from backend.errors import ModelError, RequestError
from backend.models import complete_checkpoint, recognise
from backend.models.spec import check_preset
from backend.schemas.request import GenerationRequest
from presets import LoraChoice, Preset

_RULE = "must be on this machine already: only the operator may download it"
_FIX = "ask the operator to run `python app.py models download {}`"


def has_weights(preset: Preset, model: str | None = None) -> bool:
    """Return whether this preset can generate a video without a download.

    A checkpoint `model` that replaces the preset's own counts as installed, because the operator chose it. The preset must
    support this kind of checkpoint (`matches_preset`).
    """
    is_here = _is_model_installed(preset.model_source) if model is None else matches_preset(preset, model)
    return is_here and all(_is_lora_installed(lora) for lora in preset.loras)


def matches_preset(preset: Preset, model: str) -> bool:
    """Return whether the preset supports the checkpoint `model`. True if its files are not here and cannot be checked."""
    try:
        checkpoint = _open_installed(model)
        if checkpoint is None:
            return True
        _, spec = recognise(complete_checkpoint(checkpoint, preset))
        check_preset(spec, preset, checkpoint.folder.name)
    except ModelError:
        return False
    return True


def check_weights_installed(request: GenerationRequest, model: str | None = None) -> None:
    """Check that the request needs no download. `model` replaces the preset's checkpoint. Raises: RequestError.

    All visitors may use any LoRA in the cache or the `loras` folder, also from a private repository, because the operator put it
    on this server. The cache does not record which repositories are private. Use another cache (HF_HOME) for LoRAs that visitors
    must not use.
    """
    if request.finished_video:
        return
    preset = request.resolved_preset
    if model is None and not _is_model_installed(preset.model_source):
        raise RequestError(f"preset={preset.name!r}: its model", _RULE, f"choose another preset, or {_FIX.format(preset.name)}")
    for lora in (*preset.loras, *request.loras):
        if not _is_lora_installed(lora):
            raise RequestError(f"the LoRA {lora.source}", _RULE, f"leave it out, or {_FIX.format(lora.source)}")


def _is_model_installed(source: str) -> bool:
    """Return whether the checkpoint needs no download. Loading reports the fault of a checkpoint with broken configurations."""
    try:
        return (Path(source).expanduser() / "model_index.json").is_file() or _open_installed(source) is not None
    except ModelError:
        return True


def _open_installed(source: str) -> Checkpoint | None:
    """Open the checkpoint, None if it is incomplete on this machine. Raises: ModelError for broken configurations."""
    is_with_files = parse_file_source(source) is not None
    base, transformer = split_source(source)
    folder = Path(base).expanduser()
    if not is_with_files and is_checkpoint(folder):
        return open_checkpoint(folder, transformer=transformer)
    from backend.checkpoints.hub import is_hub_id, open_cached_checkpoint

    return open_cached_checkpoint(source) if is_with_files or is_hub_id(source) else None


def _is_lora_installed(lora: LoraChoice) -> bool:
    if not lora.is_on_hub:  # a file name in the `loras` folder, which is checked when the LoRA is merged
        return True
    from backend.checkpoints.hub import find_cached_file

    return find_cached_file(lora.source) is not None
