"""Single-file transformers beside a checkpoint's other parts: how a source names them, and where their tensors are.

Such a file contains one network. The tensors have the authors' names, sometimes with a prefix. Some files store 8-bit numbers
(fp8) with a scale for each tensor or row. Reads no weights. Source of the fp8 names: Comfy-Org/ComfyUI comfy/ops.py
(`scale_weight`, the marker `scaled_fp8`) and comfy/quant_ops.py (`weight_scale`, `comfy_quant`).
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backend.checkpoints.json_files import short_path
from backend.checkpoints.tensors import TensorPlace, read_header
from backend.checkpoints.torch_file import SUFFIX as TORCH_SUFFIX
from backend.checkpoints.torch_file import TorchFile, read_torch_tensors
from backend.errors import ModelError

TransformerFile = TorchFile | Path  # A transformer's file: a PyTorch file, or a safetensors file.

SUFFIXES = (".safetensors", TORCH_SUFFIX)
PREFIXES = ("model.diffusion_model.", "diffusion_model.")  # prefixes that ComfyUI adds to each name of the transformer
SCALES = (".scale_weight", ".weight_scale")
MARKER = "scaled_fp8"
NUMBERS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
_NOT_WEIGHTS = (".scale_input", ".input_scale", ".comfy_quant", *SCALES)  # endings of names of tensors that are not weights
_FILE = r"/[^#]+?\.(?:safetensors|pt)|[\w.-]+/[\w.-]+:[^:#]+?\.safetensors"
_SOURCE = re.compile(rf"(?P<base>/.+?|[\w.-]+/[\w.-]+)\+(?P<first>{_FILE})(?:\+(?P<second>{_FILE}))?")


@dataclass(frozen=True, kw_only=True)
class FileSource:
    """A checkpoint `base`, a folder or Hub id, with transformers in these `files`, the high-noise transformer first.

    The files are absolute paths, or "owner/repository:file.safetensors" on the Hub.
    """

    base: str
    files: tuple[str, ...]


def parse_file_source(source: str | Path) -> FileSource | None:
    """Parse "BASE+FILE" or "BASE+FILE+FILE"; None for any other source."""
    match = _SOURCE.fullmatch(str(source))
    return match and FileSource(base=match["base"], files=tuple(file for file in (match["first"], match["second"]) if file))


def join_source(base: str, files: Sequence[str]) -> str:
    """Join a checkpoint and files to "BASE+FILE" or "BASE+FILE+FILE"."""
    return "+".join([base, *files])


def is_on_hub(file: str) -> bool:
    """Return whether a file of a source is on the Hub."""
    return not file.startswith("/")


def assign_parts(files: Sequence[Path]) -> dict[str, TransformerFile]:
    """Return the files, by the name of the transformer that each contains."""
    own = [TorchFile(path=path) if path.suffix == TORCH_SUFFIX else path for path in files]
    return {"transformer" if index == 0 else f"transformer_{index + 1}": file for index, file in enumerate(own)}


def file_path(file: TransformerFile) -> Path:
    return file if isinstance(file, Path) else file.path


def read_single_file_tensors(file: TransformerFile) -> dict[str, TensorPlace]:
    """Return where in the file each tensor of a transformer is, by the tensor's name in the file, without a prefix.

    Raises: ModelError for a file that is incomplete or unsafe, or whose dtypes are not supported.
    """
    if isinstance(file, TorchFile):
        return read_torch_tensors(file)
    places = read_header(file)
    prefix = next((prefix for prefix in PREFIXES if any(name.startswith(prefix) for name in places)), "")
    named = {name.removeprefix(prefix): place for name, place in places.items() if name.startswith(prefix)}
    weights = {name: place for name, place in named.items() if not name.endswith(_NOT_WEIGHTS) and name != MARKER}
    is_scaled = MARKER in named or MARKER in places
    return {name: _add_scale(file, name, place, named, is_scaled) for name, place in weights.items()}


def _add_scale(path: Path, name: str, place: TensorPlace, named: dict[str, TensorPlace], is_scaled: bool) -> TensorPlace:
    """Return the tensor's `place` in the file. If the tensor has a scale, the result also contains the scale's place."""
    if place.dtype not in NUMBERS:
        raise ModelError(
            f"{short_path(path)} has {name[:80]} as {place.dtype}:",
            "only float32, float16, bfloat16, and fp8 with one scale for each tensor or row can be read",
            "use the same model in a supported format",
        )
    stem = name.removesuffix(".weight")
    scale = next((named[stem + ending] for ending in SCALES if stem != name and stem + ending in named), None)
    if scale is None:
        if is_scaled and place.dtype.startswith("F8"):
            raise ModelError(
                f"{short_path(path)} has the mark of scaled numbers,", f"but {name[:80]} has no scale", "download it again"
            )
        return place
    if math.prod(scale.shape) not in (1, place.shape[0]) or scale.dtype not in NUMBERS:
        raise ModelError(
            f"{short_path(path)} gives {name[:80]} {math.prod(scale.shape)} scales:",
            f"it must have one, or one for each of its {place.shape[0]} rows",
            "use the same model in bfloat16 or in another fp8 format",
        )
    return dataclasses.replace(place, scale=scale)
