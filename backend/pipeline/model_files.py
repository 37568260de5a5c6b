"""Download and check a model's files, before the worker unloads its current model. Loads no weights."""

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path

from backend.checkpoints.checkpoint import TRANSFORMER, Checkpoint, part_folder
from backend.checkpoints.hub import OnBytes, find_checkpoint, find_file
from backend.checkpoints.loras import find_lora
from backend.checkpoints.single_file import file_path
from backend.checkpoints.speed import Speed
from backend.checkpoints.verify import check_part
from backend.models import complete_checkpoint, recognise
from backend.models.spec import Family, ModelSpec, check_preset
from backend.schemas.events import DOWNLOAD, Event, Loading
from backend.settings import from_environment
from presets import LoraChoice, Preset

OnEvent = Callable[[Event], None]
_KEPT = (".safetensors", ".json", ".pt", ".model")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """A checkpoint on this machine. `source` is the requested folder or Hub id."""

    source: str
    checkpoint: Checkpoint
    family: Family
    spec: ModelSpec

    @property
    def files_hash(self) -> str:
        """A hash of the files' names and sizes, equal on all hosts that generate a video together."""
        folder = self.checkpoint.folder
        places = [(path.relative_to(folder) if path.is_relative_to(folder) else path.name, path) for path in self.paths]
        sizes = "\n".join(f"{name} {path.stat().st_size}" for name, path in places)
        return hashlib.sha256(sizes.encode()).hexdigest()[:16]

    @property
    def paths(self) -> list[Path]:
        """The files that the model is loaded from."""
        checkpoint, kept = self.checkpoint, []
        own = {part_folder(part, checkpoint.transformer_folder) for part in checkpoint.parts}
        for path in sorted([*checkpoint.folder.glob("*"), *checkpoint.folder.glob("*/*")]):  # "**" follows no links to folders
            part = path.relative_to(checkpoint.folder).parts[0]
            is_of_another_preset = part.startswith(TRANSFORMER) and part not in own
            if path.suffix in _KEPT and path.is_file() and not is_of_another_preset:
                kept.append(path)
        return kept + [path for path in map(file_path, checkpoint.transformer_files.values()) if path not in kept]


def check_model(preset: Preset, model: str | None, on_event: OnEvent) -> ModelFiles:
    """Download the files that loading the preset's model needs, and check that they are complete and can be used. Raises:
    ModelError, RequestError; any error of `on_event`."""
    files = open_model(preset, model, on_event)
    for part in files.checkpoint.parts:
        check_part(files.checkpoint, files.family, part)
    for lora in preset.loras:
        find_lora_file(lora, on_event)
    return files


def open_model(preset: Preset, model: str | None, on_event: OnEvent) -> ModelFiles:
    """Open the preset's checkpoint, or `model` (a folder or a Hub id) in its place. Download it if needed. Raises: ModelError if
    it is not available, or is of another kind than the preset; any error of `on_event`."""
    source = model or preset.model_source
    checkpoint = complete_checkpoint(find_checkpoint(source, recognise, _report_download(on_event)), preset)
    family, spec = recognise(checkpoint)
    check_preset(spec, preset, Path(source).name)
    return ModelFiles(source=source, checkpoint=checkpoint, family=family, spec=spec)


def find_lora_file(choice: LoraChoice, on_event: OnEvent) -> Path:
    """Find the LoRA's file, and download it if needed. Raises: ModelError, RequestError; any error of `on_event`."""
    if choice.is_on_hub:
        return find_file(choice.source, _report_download(on_event))
    return find_lora(choice.source, from_environment().loras_dir)


def _report_download(on_event: OnEvent) -> OnBytes:
    speed = Speed()
    return lambda done, total: on_event(Loading(done, total, DOWNLOAD, speed(done) if total else 0.0))
