"""Single-file transformers: parse model sources such as "BASE+FILE", and find where each tensor is in a file.

Such a file contains one network. The tensors have the authors' names, sometimes with a prefix. Some files store numbers of 8 or 4
bits with scales. An fp8 tensor has one scale, or a scale for each row. An int8 matrix has a scale for each tile of 128 x 128. An
fp4 matrix has a scale for each 16 numbers of a row, and one scale for the whole matrix. Reads no weights. Sources of the names:
- fp8: Comfy-Org/ComfyUI comfy/ops.py (`scale_weight`, the marker `scaled_fp8`) and comfy/quant_ops.py (`weight_scale`,
  `comfy_quant`)
- int8: thu-ml/TurboDiffusion turbodiffusion/ops/core.py (`int8_weight`, `scale`)
- fp4: ModelTC/LightX2V lightx2v/common/ops/mm/mm_weight.py (`weight_scale`, `alpha`, `input_global_scale`). There alpha is
  1 / (input_global_scale * the weight's global scale), so the tensor's scale is alpha * input_global_scale.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.checkpoints.json_files import short_path
from backend.checkpoints.tensors import FP4, TensorPlace, read_header
from backend.checkpoints.torch_file import SUFFIXES as TORCH_SUFFIXES
from backend.checkpoints.torch_file import TorchFile, read_torch_tensors
from backend.errors import ModelError

TransformerFile = TorchFile | Path  # A transformer's file: a PyTorch file, or a safetensors file.

SUFFIXES = (".safetensors", *TORCH_SUFFIXES)
PREFIXES = ("model.diffusion_model.", "diffusion_model.")  # prefixes that ComfyUI adds to each name of the transformer
SCALES = (".scale_weight", ".weight_scale")
MARKER = "scaled_fp8"
INT8_WEIGHT, INT8_SCALE, TILE = ".int8_weight", ".scale", 128
FP4_SCALES = (".weight_scale", ".alpha", ".input_global_scale")
FP4_BLOCK = 16  # consecutive numbers of a row that share one scale
NUMBERS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
_NOT_WEIGHTS = (".scale_input", ".input_scale", ".comfy_quant", *SCALES)  # endings of names of tensors that are not weights
_FILE = r"(?:/[^#]+?|[\w.-]+/[\w.-]+:[^:#]+?)\.(?:safetensors|pth?)"
_SOURCE = re.compile(rf"(?P<base>/.+?|[\w.-]+/[\w.-]+)\+(?P<first>{_FILE})(?:\+(?P<second>{_FILE}))?(?:#(?P<tree>\w+))?")


@dataclass(frozen=True, kw_only=True)
class FileSource:
    """A checkpoint `base`, a folder or Hub id, with transformers in these `files`, the high-noise transformer first.

    The files are absolute paths, or "owner/repository:file" on the Hub. `tree` names the dictionary in PyTorch files
    that contains the weights. "" selects the first dictionary of `torch_file.TREES` that exists.
    """

    base: str
    files: tuple[str, ...]
    tree: str = ""


def parse_file_source(source: str | Path) -> FileSource | None:
    """Parse "BASE+FILE" or "BASE+FILE+FILE", each with an optional "#TREE" at the end; None for any other source."""
    if (match := _SOURCE.fullmatch(str(source))) is None:
        return None
    files = tuple(file for file in (match["first"], match["second"]) if file)
    return FileSource(base=match["base"], files=files, tree=match["tree"] or "")


def is_on_hub(file: str) -> bool:
    return not file.startswith("/")


def assign_parts(files: Sequence[Path], tree: str = "") -> dict[str, TransformerFile]:
    """Return the files by the names of the transformers that they contain."""
    own = [TorchFile(path=path, tree=tree) if path.suffix in TORCH_SUFFIXES else path for path in files]
    return {"transformer" if index == 0 else f"transformer_{index + 1}": file for index, file in enumerate(own)}


def file_path(file: TransformerFile) -> Path:
    return file if isinstance(file, Path) else file.path


def read_single_file_tensors(file: TransformerFile) -> dict[str, TensorPlace]:
    """Return the place of each tensor of a transformer in the file, by the tensor's name in the file, without a prefix.

    Raises: ModelError for a file that is incomplete or unsafe, or whose dtypes are not supported.
    """
    if isinstance(file, TorchFile):
        return _join_int8(file.path, read_torch_tensors(file))
    places = read_header(file)
    prefix = next((prefix for prefix in PREFIXES if any(name.startswith(prefix) for name in places)), "")
    named = {name.removeprefix(prefix): place for name, place in places.items() if name.startswith(prefix)}
    is_scaled = MARKER in named or MARKER in places
    named = _join_fp4(file, _join_int8(file, named))
    weights = {name: place for name, place in named.items() if not name.endswith(_NOT_WEIGHTS) and name != MARKER}
    return {name: _add_scale(file, name, place, named, is_scaled) for name, place in weights.items()}


def _join_int8(path: Path, places: Mapping[str, TensorPlace]) -> dict[str, TensorPlace]:
    """Join X.int8_weight and X.scale to one entry X.weight. Other tensors stay unchanged."""
    stems = [name.removesuffix(INT8_WEIGHT) for name in places if name.endswith(INT8_WEIGHT)]
    used = {stem + ending for stem in stems for ending in (INT8_WEIGHT, INT8_SCALE)}
    joined = {name: place for name, place in places.items() if name not in used}
    for stem in stems:
        place, scale = places[stem + INT8_WEIGHT], places.get(stem + INT8_SCALE)
        tiles = tuple(-(-length // TILE) for length in place.shape)
        if place.dtype != "I8" or len(tiles) != 2 or scale is None or scale.shape != tiles or scale.dtype not in NUMBERS:
            what = f"{short_path(path)} has {stem[:80]}{INT8_WEIGHT} without a scale for each tile:"
            rule = f"it must be an int8 matrix, and {INT8_SCALE[1:]} must have one number for {TILE} x {TILE} of its numbers"
            raise ModelError(what, rule, "download it again")
        joined[f"{stem}.weight"] = dataclasses.replace(place, scale=scale, scale_block=(TILE, TILE))
    return joined


def _join_fp4(path: Path, places: Mapping[str, TensorPlace]) -> dict[str, TensorPlace]:
    """Join each fp4 weight and its scales to one entry, whose shape counts numbers, of which a byte stores two."""
    packed = [name.removesuffix(".weight") for name, place in places.items() if place.dtype == "U8" and len(place.shape) == 2]
    stems = [stem for stem in packed if all(stem + ending in places for ending in FP4_SCALES)]
    used = {stem + ending for stem in stems for ending in FP4_SCALES}
    joined = {name: place for name, place in places.items() if name not in used}
    for stem in stems:
        place, (blocks, alpha, input_scale) = places[f"{stem}.weight"], (places[stem + ending] for ending in FP4_SCALES)
        rows, columns = place.shape[0], 2 * place.shape[1]
        stored = -(-rows // 128) * 128 * (-(-columns // (4 * FP4_BLOCK)) * 4)
        are_numbers = all(math.prod(one.shape) == 1 and one.dtype in NUMBERS for one in (alpha, input_scale))
        if columns % FP4_BLOCK or math.prod(blocks.shape) != stored or not are_numbers:
            what = f"{short_path(path)} has {stem[:80]}.weight as fp4 {[rows, columns]} with {math.prod(blocks.shape)} scales:"
            rule = f"it must be a matrix with {stored} scales, and {' and '.join(FP4_SCALES[1:])} must be single numbers"
            raise ModelError(what, rule, "use the same model in bfloat16")
        scale = dataclasses.replace(blocks, scale=dataclasses.replace(alpha, scale=input_scale))
        layout: dict[str, Any] = {"dtype": FP4, "shape": (rows, columns), "scale_block": (1, FP4_BLOCK)}
        joined[f"{stem}.weight"] = dataclasses.replace(place, scale=scale, **layout)
    return joined


def _add_scale(path: Path, name: str, place: TensorPlace, named: dict[str, TensorPlace], is_scaled: bool) -> TensorPlace:
    if place.scale is not None:
        return place
    if place.dtype not in NUMBERS:
        rule = "only float32, float16, bfloat16, and fp8, int8 and fp4 with scales as in docs/models.md can be read"
        what = f"{short_path(path)} has {name[:80]} as {place.dtype}:"
        raise ModelError(what, rule, "use the same model in a supported format")
    stem = name.removesuffix(".weight")
    scale = next((named[stem + ending] for ending in SCALES if stem != name and stem + ending in named), None)
    if scale is None:
        if is_scaled and place.dtype.startswith("F8"):
            what = f"{short_path(path)} has the mark of scaled numbers,"
            raise ModelError(what, f"but {name[:80]} has no scale", "download it again")
        return place
    if math.prod(scale.shape) not in (1, place.shape[0]) or scale.dtype not in NUMBERS:
        what = f"{short_path(path)} gives {name[:80]} {math.prod(scale.shape)} scales:"
        rule = f"it must have one, or one for each of its {place.shape[0]} rows"
        raise ModelError(what, rule, "use the same model in bfloat16 or in another fp8 format")
    return dataclasses.replace(place, scale=scale)
