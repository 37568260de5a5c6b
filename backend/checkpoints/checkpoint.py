"""Read a checkpoint folder: its model_index.json and its networks' configurations. Reads no weights."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.checkpoints.json_files import read_json
from backend.checkpoints.single_file import TransformerFile, read_single_file_tensors
from backend.checkpoints.tensors import TensorPlace, part_tensors
from backend.checkpoints.torch_file import TorchFile
from backend.errors import ModelError

TRANSFORMER = "transformer"
WITHOUT_WEIGHTS = ("tokenizer", "scheduler", "feature_extractor", "image_processor", "guider")
"""Parts of diffusers' pipelines that are not networks. A number may follow the name, as in tokenizer_2."""
UNUSED = ("processor", "prompt_enhancer", "duration_head")  # parts of LTX-2's pipelines that this program does not load
UNNAMED = ("latent_upsampler",)  # a network of LTX-2 in a folder that model_index.json does not name
_FOLDER_SOURCE = re.compile(r"(?P<base>[^+:#]+)#(?P<transformer>transformer_\w+)")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A folder in diffusers' layout.

    `index` is the content of model_index.json. `configs` maps the name of each part, such as "transformer", to the content of its
    config.json. `transformer_files` maps parts to single files in the authors' format. `convert_tensors` returns a single file's
    tensors with diffusers' names and arrangement.
    """

    folder: Path
    index: dict[str, Any]
    configs: dict[str, dict[str, Any]]
    transformer_files: Mapping[str, TransformerFile] = field(default_factory=dict)
    transformer_folder: str = TRANSFORMER
    convert_tensors: Callable[[Mapping[str, TensorPlace]], dict[str, TensorPlace]] = dict

    @property
    def parts(self) -> tuple[str, ...]:
        """Parts that have weights, transformers first."""
        return tuple(sorted(self.configs, key=lambda part: (not part.startswith("transformer"), part)))

    def tensors(self, part: str) -> dict[str, TensorPlace]:
        """Return the place of each tensor of a part in its file, by name. Raises: ModelError for an incomplete file."""
        if part in self.transformer_files:
            return self.convert_tensors(read_single_file_tensors(self.transformer_files[part]))
        return part_tensors(self.folder, part_folder(part, self.transformer_folder))


def split_source(source: str | Path) -> tuple[str, str]:
    """Split "BASE#FOLDER" into the checkpoint and the folder of its transformer, by default "transformer"."""
    match = _FOLDER_SOURCE.fullmatch(str(source))
    return (match["base"], match["transformer"]) if match else (str(source), TRANSFORMER)


def part_folder(part: str, transformer: str) -> str:
    return transformer if part == TRANSFORMER else part


def is_checkpoint(folder: Path) -> bool:
    """Return whether the folder is a checkpoint. Raises: ModelError if it contains several .pt files."""
    return (folder / "model_index.json").is_file() or _find_torch_file(folder) is not None


def open_checkpoint(
    folder: Path, transformer_files: Mapping[str, TransformerFile] | None = None, transformer: str = TRANSFORMER
) -> Checkpoint:
    """Open a checkpoint folder and read its configurations. Raises: ModelError if a configuration is missing or broken.

    Transformers are read from `transformer_files` if given, otherwise from a .pt file in the folder or the folder `transformer`.
    """
    if not transformer_files and transformer == TRANSFORMER and (torch_file := _find_torch_file(folder)) is not None:
        transformer_files = {TRANSFORMER: torch_file}
    if not transformer_files:
        index = read_json(folder / "model_index.json")
        parts = [part for part in named_parts(index) if not part.startswith(WITHOUT_WEIGHTS) and part not in UNUSED]
        parts += [part for part in UNNAMED if part not in parts and (folder / part / "config.json").is_file()]
        configs = {part: read_json(folder / part_folder(part, transformer) / "config.json") for part in parts}
        return Checkpoint(folder=folder, index=index, configs=configs, transformer_folder=transformer)
    index = read_json(folder / "model_index.json") if (folder / "model_index.json").is_file() else {}
    parts = [path.parent.name for path in sorted(folder.glob("*/config.json"))]
    tokenizers = [path.name for path in sorted(folder.glob("tokenizer*")) if path.is_dir()]
    named = {part: ["diffusers", part] for part in (*transformer_files, *parts, *tokenizers)}
    configs = {part: read_json(folder / part / "config.json") for part in parts if not part.startswith(WITHOUT_WEIGHTS)}
    return Checkpoint(folder=folder, index=named | index, configs=configs, transformer_files=transformer_files)


def _find_torch_file(folder: Path) -> TorchFile | None:
    """Return the .pt file that contains the transformer, None if there is no such file or `transformer` contains weights."""
    if any((folder / TRANSFORMER).glob("*.safetensors*")):
        return None
    paths = sorted(folder.glob("*.pt"))
    if len(paths) > 1:
        names = " and ".join(path.name for path in paths[:2])
        raise ModelError(f"{folder.name} contains {names}:", "only one .pt file can be its transformer", "leave only one there")
    return TorchFile(path=paths[0]) if paths else None


def named_parts(index: Mapping[str, object]) -> list[str]:
    """Return the parts that the checkpoint has. Their values are [library, class], the values of absent parts [null, null]."""
    return [part for part, value in index.items() if isinstance(value, list) and len(value) == 2 and all(value)]
