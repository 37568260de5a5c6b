"""Find each tensor in a checkpoint's safetensors files from their headers alone. Reads no weights.

Files are checked before anything is loaded. Errors name the file that is missing, incomplete or of another kind, and the expected
file. Source of the format: huggingface/safetensors, README.md ("Format").
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.checkpoints.json_files import AGAIN, read_json, short_path
from backend.errors import ModelError

FP4 = "FP4"
"""The dtype of a `TensorPlace` whose bytes contain two numbers in the format E2M1, the first in the low four bits.

safetensors has no such dtype: such bytes are U8. The numbers of the scale are in tiles (`backend.weights.read`).
"""
LARGEST_HEADER = 100_000_000  # maximum bytes of a file's header, as the format states
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
              "F8_E4M3": 1, "F8_E5M2": 1}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TensorPlace:
    """One tensor's bytes, from `start` to `end` in the file. `dtype` is safetensors' name for the dtype, or `FP4`.

    If `scale` is set, the tensor is the product of the stored numbers and the scale. The scale is one number, or one number for
    each row. If `scale_block` is set too, the scale has one number for each block of (rows, columns). If `swaps_halves` is True,
    the file stores the second half of the rows before the first half, and the scale's rows in the same order.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int
    scale: TensorPlace | None = None
    scale_block: tuple[int, int] | None = None
    swaps_halves: bool = False

    @property
    def num_bytes(self) -> int:
        return self.end - self.start


def weight_files(folder: Path, part: str) -> list[Path]:
    """Return the files in the part's index, or all safetensors files in its folder. Raises: ModelError."""
    indexes = sorted((folder / part).glob("*.safetensors.index.json"))
    if not indexes:
        paths = sorted((folder / part).glob("*.safetensors"))
        if not paths:
            what = f"{short_path(folder / part)} contains no .safetensors file:"
            raise ModelError(what, "a checkpoint needs its weights", AGAIN)
        return paths
    paths = [folder / part / name for name in sorted(set(_read_weight_map(indexes[0]).values()))]
    for path in paths:
        if not path.is_file():
            raise ModelError(f"{short_path(path)} is missing:", f"{indexes[0].name} names {len(paths)} files", AGAIN)
    return paths


def tensor_names(folder: Path, part: str) -> Collection[str]:
    """Return the names of a part's tensors, none if the part has no weights. Raises: ModelError."""
    indexes = sorted((folder / part).glob("*.safetensors.index.json"))
    if indexes:
        return _read_weight_map(indexes[0])
    return [name for path in (folder / part).glob("*.safetensors") for name in read_header(path)]


def _read_weight_map(index: Path) -> dict[str, str]:
    names = read_json(index).get("weight_map", {})
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ModelError(f"{short_path(index)}: weight_map", "must be an object with the file of each tensor", AGAIN)
    return names


def part_tensors(folder: Path, part: str) -> dict[str, TensorPlace]:
    """Return the places of a part's tensors by name, in the order of the files. Raises: ModelError for an incomplete file."""
    return {name: place for path in weight_files(folder, part) for name, place in read_header(path).items()}


def read_header(path: Path) -> dict[str, TensorPlace]:
    """Return the places of a file's tensors by name, in the order of their bytes. Raises: ModelError."""
    size = os.path.getsize(path)
    entries, begin = _read_header(path, size)
    places = {}
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        try:
            offsets, dtype, shape = entry["data_offsets"], entry["dtype"], tuple(entry["shape"])
            first, last = offsets
        except (TypeError, KeyError, ValueError):
            raise _unreadable_error(path) from None
        if not isinstance(dtype, str) or not all(type(number) is int and number >= 0 for number in (first, last, *shape)):
            raise _unreadable_error(path)
        place = TensorPlace(path=path, dtype=dtype, shape=shape, start=begin + first, end=begin + last)
        needed = math.prod(shape) * ITEM_BYTES.get(dtype, 0)
        if place.num_bytes != needed:
            what = f"{short_path(path)}: {name} has {place.num_bytes:,} bytes,"
            raise ModelError(what, f"and {dtype} {list(shape)} needs {needed:,}", AGAIN)
        places[name] = place
    expected = max((place.end for place in places.values()), default=begin)
    if size != expected:
        how = "cut short" if size < expected else "too long"
        raise ModelError(f"{short_path(path)} is {how}: it has {size:,} bytes and", f"must have {expected:,}", AGAIN)
    return dict(sorted(places.items(), key=lambda item: item[1].start))


def read_metadata(path: Path) -> dict[str, str]:
    return _read_header(path, os.path.getsize(path))[0].get("__metadata__", {})


def _read_header(path: Path, size: int) -> tuple[dict[str, Any], int]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(LARGEST_HEADER, size - 8):
            what = f"{short_path(path)} has {size:,} bytes, and its header alone says {length:,}:"
            raise ModelError(what, "it must be a complete safetensors file", AGAIN)
        try:
            entries = json.loads(file.read(length))
        except (ValueError, RecursionError):
            entries = None
    if not isinstance(entries, dict) or not isinstance(entries.get("__metadata__", {}), dict):
        raise _unreadable_error(path)
    return entries, 8 + length


def _unreadable_error(path: Path) -> ModelError:
    return ModelError(short_path(path), "must be a safetensors file, and its header cannot be read", AGAIN)


def check_shapes(part: str, places: dict[str, TensorPlace], expected: Mapping[str, Sequence[int]]) -> None:
    """Check the shapes of a part's tensors. Raises: ModelError if a tensor is missing or has another shape."""
    missing = sorted(expected.keys() - places.keys())
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        rule = f"its config.json needs {len(expected)} tensors"
        raise ModelError(f"{part} lacks the tensor {missing[0]}{more}:", rule, "the files are of another model: " + AGAIN)
    for name, shape in expected.items():
        found, path = places[name].shape, places[name].path
        # a matrix can be a convolution's kernel whose axes after the first are joined to one axis
        is_flat = len(found) == 2 < len(shape) and found[0] == shape[0] and math.prod(found) == math.prod(shape)
        if found != tuple(shape) and not is_flat:
            what = f"{short_path(path)}: {name} has the shape {list(found)},"
            raise ModelError(what, f"and config.json makes it {list(shape)}", "the file is of another model: " + AGAIN)
