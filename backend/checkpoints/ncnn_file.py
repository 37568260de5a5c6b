"""Find each array in the two files of an ncnn network: a text file with its layers, and a binary file with their weights.

Source of the format: Tencent/ncnn, docs/developer-guide/param-and-model-file-structure.md.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from backend.checkpoints.json_files import AGAIN, short_path
from backend.checkpoints.tensors import TensorPlace
from backend.errors import ModelError

_MAGIC = "7767517"
_DTYPES = {0: "F32", 0x01306B47: "F16"}  # dtypes of a convolution's weights, by the 32-bit number that precedes the weights
_TAG_BYTES = 4


def read_ncnn_tensors(layers: Path, numbers: Path, names: Sequence[str]) -> dict[str, TensorPlace]:
    """Find the arrays of all convolutions and PReLUs of a network in the binary file `numbers`, by their names in PyTorch.

    `layers` is the text file. `names` are the modules' names, in the order of the layers. Raises: ModelError.
    """
    try:
        rows = [line.split() for line in layers.read_text("ascii").splitlines()]
        if rows[0] != [_MAGIC]:
            raise ValueError
        wanted = [(row[0], dict(word.split("=") for word in row if "=" in word)) for row in rows[2:] if row]
        with numbers.open("rb") as file:
            places = list(_iterate_places([one for one in wanted if one[0] in ("Convolution", "PReLU")], numbers, file))
        named = {}
        for name, arrays in zip(names, places, strict=True):
            named |= {f"{name}.{kind}": place for kind, place in arrays.items()}
    except (OSError, ValueError, IndexError, KeyError) as error:
        rule = f"it must be complete ({type(error).__name__})"
        raise ModelError(f"{short_path(numbers)} cannot be read:", rule, AGAIN) from None
    if numbers.stat().st_size != max(place.end for place in named.values()):
        raise ModelError(f"{short_path(numbers)} is too short or too long", f"for {layers.name}", AGAIN)
    return named


def _iterate_places(layers: Sequence[tuple[str, dict[str, str]]], path: Path, file) -> Iterator[dict[str, TensorPlace]]:
    start = 0

    def place(dtype: str, *shape: int) -> TensorPlace:
        nonlocal start
        end = start + math.prod(shape) * (2 if dtype == "F16" else 4)
        made, start = TensorPlace(path=path, dtype=dtype, shape=shape, start=start, end=end), end
        return made

    for kind, facts in layers:
        channels = int(facts["0"])
        if kind == "PReLU":
            yield {"weight": place("F32", channels)}
            continue
        side, count = int(facts["1"]), int(facts["6"])
        file.seek(start)
        dtype = _DTYPES[int.from_bytes(file.read(_TAG_BYTES), "little")]
        start += _TAG_BYTES
        weight = place(dtype, channels, count // (channels * side * side), side, side)
        yield {"weight": weight, "bias": place("F32", channels)}
