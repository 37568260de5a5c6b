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

    The checkpoint must be a folder, or complete in the Hub's cache, and each LoRA of the preset must be on this machine. If the
    checkpoint `model` replaces the preset's own checkpoint, `model` counts as installed, because the operator chose it. The
    preset must support this kind of checkpoint (`matches_preset`).
    """
    is_here = _is_model_installed(preset.model_source) if model is None else matches_preset(preset, model)
    return is_here and all(_is_lora_installed(lora) for lora in preset.loras)


def matches_preset(preset: Preset, model: str) -> bool:
    """Return whether the preset supports the checkpoint `model`.

    Return True if the checkpoint's files are not on this machine, because they cannot be checked.
    """
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
    """Check that the request needs no download. `model` replaces the preset's checkpoint, as in `has_weights`.

    All visitors may use any LoRA in the cache, also from a private repository, because the operator put it on this server. The
    same is true for files in the `loras` folder. Only videos leave the server. The cache does not record which repositories are
    private, and asking the Hub would need the operator's token. Use another cache (HF_HOME) for LoRAs that visitors must not use.

    Raises: RequestError if the request needs a download.
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
    """Return whether this is a checkpoint's folder, or a checkpoint that is complete on this machine.

    A checkpoint with broken configurations needs no download either. Loading it reports the fault.
    """
    try:
        return (Path(source).expanduser() / "model_index.json").is_file() or _open_installed(source) is not None
    except ModelError:
        return True


def _open_installed(source: str) -> Checkpoint | None:
    """Open the checkpoint, or return None if it is incomplete on this machine. Raises: ModelError for broken configurations."""
    if (named := parse_file_source(source)) is not None:
        from backend.checkpoints.hub import open_cached_with_files

        return open_cached_with_files(named)
    base, transformer = split_source(source)
    folder = Path(base).expanduser()
    if is_checkpoint(folder):
        return open_checkpoint(folder, transformer=transformer)
    from backend.checkpoints.hub import is_hub_id, open_cached_checkpoint

    return open_cached_checkpoint(source) if is_hub_id(source) else None


def _is_lora_installed(lora: LoraChoice) -> bool:
    """Return whether the LoRA needs no download.

    A file name in the `loras` folder counts as installed. The file is checked when the LoRA is merged.
    """
    if not lora.is_on_hub:
        return True
    from backend.checkpoints.hub import find_cached_file

    return find_cached_file(lora.source) is not None
