"""Whether what a request needs is on this machine already, or would have to be downloaded, which only the operator may begin.

Runs for every request and every page, so it reads only a few small files and never uses the network.
"""

from pathlib import Path

from backend.checkpoints.checkpoint import Checkpoint, is_checkpoint, open_checkpoint, split_source
from backend.checkpoints.single_file import parse_file_source
from backend.errors import ModelError, RequestError
from backend.models import complete_checkpoint, recognise
from backend.models.spec import check_preset
from backend.schemas.request import GenerationRequest, find_preset
from presets import LoraChoice, Preset

_RULE = "must be on this machine already: only the operator may download it"
_FIX = "ask the operator to run `python app.py models download {}`"


def has_weights(preset: Preset, model: str | None = None) -> bool:
    """Whether a video can be made with this preset and without a download, judged by the files on this machine.

    Its checkpoint must be a folder, or complete in the Hub's cache, and each LoRA of the preset must be here, too. A checkpoint
    `model` that replaces the presets' own counts as here, because the operator has named it; it must be of the preset's kind.
    """
    is_here = _is_model_installed(preset.model_source) if model is None else matches_preset(preset, model)
    return is_here and all(_is_lora_installed(lora) for lora in preset.loras)


def matches_preset(preset: Preset, model: str) -> bool:
    """Whether the checkpoint `model` is of the preset's kind, judged by the files on this machine."""
    try:
        checkpoint = _open_installed(model)
        if checkpoint is None:
            return True
        _, kind = recognise(complete_checkpoint(checkpoint, preset))
        check_preset(kind, preset, checkpoint.folder.name)
    except ModelError:
        return False
    return True


def check_weights_installed(request: GenerationRequest, model: str | None = None) -> None:
    """Raises: RequestError if this request would begin a download. `model` as for `has_weights`.

    Everybody may use a LoRA that is in the cache, also one from a private repository: the operator has brought it to this
    server, like the files in the `loras` folder, and only videos leave the server. The cache does not record what is private,
    and asking the Hub would need the operator's token. LoRAs that visitors should not use belong in another cache (HF_HOME).
    """
    if request.finished_video:
        return
    preset = find_preset(request.preset)
    if model is None and not _is_model_installed(preset.model_source):
        raise RequestError(f"preset={preset.name!r}: its model", _RULE, f"take another preset, or {_FIX.format(preset.name)}")
    for lora in (*preset.loras, *request.loras):
        if not _is_lora_installed(lora):
            raise RequestError(f"the LoRA {lora.source}", _RULE, f"leave it out, or {_FIX.format(lora.source)}")


def _is_model_installed(source: str) -> bool:
    """Whether this is a checkpoint's folder, or a checkpoint that is complete on this machine."""
    return (Path(source).expanduser() / "model_index.json").is_file() or _open_installed(source) is not None


def _open_installed(source: str) -> Checkpoint | None:
    """A complete checkpoint on this machine, or None. Raises: ModelError if its configurations are broken."""
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
    """Whether it needs no download; a name in the `loras` folder is looked up when it is merged."""
    if not lora.is_on_hub:
        return True
    from backend.checkpoints.hub import find_cached_file

    return find_cached_file(lora.source) is not None
