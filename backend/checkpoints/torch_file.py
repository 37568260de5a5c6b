"""Find each tensor in a PyTorch file (.pt, .pth) from its table of contents alone. Reads no weights and runs no code of the file.

Such a file is a zip archive: a pickle, which names the tensors, and their uncompressed bytes. A pickle is a program that may call
any Python function. Here the program does not run. Its instructions are read one by one. Instructions that build dictionaries,
lists, texts, numbers and tensors are followed. A file with any other instruction is refused.

Source of the format: pytorch/pytorch torch/serialization.py, torch/_utils.py; the instructions: Python's pickletools.
"""

import dataclasses
import functools
import math
import pickletools
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.checkpoints.json_files import short_path
from backend.checkpoints.tensors import ITEM_BYTES, TensorPlace
from backend.errors import ModelError

SUFFIXES = (".pt", ".pth")
TREES = ("generator_ema", "generator", "generator_lora", "params_ema", "params", "state_dict")
"""The dictionaries in which training programs store a network's tensors; the first that exists is used. The running mean of the
weights (EMA) precedes the weights."""
WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")  # prefixes that PyTorch adds within names
LARGEST_CONTENTS = 10_000_000  # maximum bytes of the pickle, which needs about a hundred bytes per tensor
MOST_AXES = 8  # maximum number of axes of a tensor
LITTLE = b"little"  # the only supported byte order
SAFE = "it may contain only tensors, in dictionaries and lists with texts and numbers"
OTHER_FILE = "use the original file, or save it again with torch.save as a dictionary of tensors"
_DTYPES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16", "LongStorage": "I64",
    "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8", "BoolStorage": "BOOL",
}  # fmt: skip
_DICTIONARY, _TENSOR, _PARAMETER = (
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
)
# The number of bytes of a zip entry's header, before the entry's name. The last four bytes are the lengths of the name and of the
# extra field that follows the name.
_ENTRY_HEADER = 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class TorchFile:
    """A PyTorch file. The tensors are in its dictionary `tree`, by default in the first of `TREES` or at the top level."""

    path: Path
    tree: str = ""


def read_torch_tensors(file: TorchFile) -> dict[str, TensorPlace]:
    """Return the places of the file's tensors by name, in the order of their bytes.

    Raises: ModelError for a file that is incomplete or unsafe, or that has no dictionary with the name `file.tree`.
    """
    status = file.path.stat()
    return dict(_read_tensors(file, status.st_size, status.st_mtime_ns))


@functools.lru_cache(maxsize=8)
def _read_tensors(file: TorchFile, size: int, changed: int) -> dict[str, TensorPlace]:
    """Read the places. They are cached, because every request needs them. `changed` is a part of the cache's key."""
    path = file.path
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
            contents = next((entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl")), None)
            if contents is None or contents.file_size > LARGEST_CONTENTS or contents.compress_type != zipfile.ZIP_STORED:
                raise _refused_error(path, "has no table of contents, or a table of contents of something else than a network")
            found = _Contents(path).read(archive.read(contents))
            folder = contents.filename.removesuffix("data.pkl")
            entries = {entry.filename.removeprefix(folder): entry for entry in archive.infolist()}
            order = entries.get("byteorder")
            if order is not None and (order.file_size > len(LITTLE) or archive.read(order) != LITTLE):
                raise _refused_error(path, "has another byte order than little-endian")
            found = found if isinstance(found, dict) else {}
            trees = [file.tree] if file.tree else [*(tree for tree in TREES if tree in found), ""]
            values = found.get(trees[0]) if trees[0] else found
            values = values if isinstance(values, dict) else {}
            tensors = {name: value for name, value in values.items() if isinstance(value, _Tensor)}
            if not tensors or not all(isinstance(name, str) for name in tensors):
                there = ", ".join(str(name)[:40] for name in [*found][:5]) or "nothing"
                rule = f"a network's tensors must be there, or in {file.tree or ' or '.join(TREES)}"
                raise ModelError(f"{short_path(path)} has {there} at its top:", rule, OTHER_FILE)
            named = {
                functools.reduce(lambda text, part: text.replace(part, ""), WRAPPERS, name): tensors[name] for name in tensors
            }
            places = {name: _find_place(path, raw, size, name, tensor, entries) for name, tensor in named.items()}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise _refused_error(path, f"cannot be read ({type(error).__name__})") from None
    return dict(sorted(places.items(), key=lambda item: item[1].start))


def _refused_error(path: Path, what: str) -> ModelError:
    return ModelError(f"{short_path(path)} {what}:", SAFE, OTHER_FILE)


@dataclasses.dataclass(frozen=True)
class _Storage:
    """One entry of the archive, whose bytes are numbers of this dtype."""

    dtype: str
    entry: str


@dataclasses.dataclass(frozen=True)
class _Tensor:
    """A tensor whose elements are in a storage. `first` is the index of the tensor's first element in the storage."""

    storage: _Storage
    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class _Name:
    """The name of a function or a class in the pickle, as the pickle writes it: the module, a space, the name."""

    name: str


class _Contents:
    """Follows a pickle's instructions. Source of their meaning: Python's pickletools."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack: list[Any] = []
        self._marks: list[int] = []  # where groups of values start on the stack
        self._memo: dict[int, Any] = {}

    def read(self, pickled: bytes) -> Any:
        """Return the value that the pickle describes. Raises: ModelError for instructions and names that tensors do not need."""
        try:
            for instruction, argument, _ in pickletools.genops(pickled):
                if instruction.name == "STOP":
                    return self._stack.pop()
                self._run_instruction(instruction.name, argument)
        except (IndexError, KeyError, TypeError, ValueError, AttributeError, UnicodeDecodeError):
            raise _refused_error(self._path, "has a table of contents that makes no sense") from None
        raise _refused_error(self._path, "has a table of contents without an end")

    def _run_instruction(self, instruction: str, argument: Any) -> None:
        stack = self._stack
        match instruction:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                self._marks.append(len(stack))
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[instruction])
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "BINUNICODE" | "SHORT_BINUNICODE":
                stack.append(argument)
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
                stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[instruction]())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(instruction[-1])
                stack[-count:] = [tuple(stack[-count:])]
            case "TUPLE":
                stack.append(tuple(self._pop_group()))
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "APPEND" | "APPENDS":
                values = self._pop_group() if instruction == "APPENDS" else [stack.pop()]
                stack[-1].extend(values)
            case "SETITEM" | "SETITEMS":
                values = self._pop_group() if instruction == "SETITEMS" else [stack.pop() for _ in range(2)][::-1]
                keys, found = values[::2], stack[-1]
                if not all(type(key) in (str, int) for key in keys):  # other keys are refused: hashing a tuple may take very long
                    raise ValueError
                # Integer keys, as in an optimizer's state, are ignored. A malicious file could contain many integers with the
                # same hash, which make a dictionary slow.
                found.update((key, value) for key, value in zip(keys, values[1::2], strict=True) if type(key) is str)
            case "GLOBAL":
                module, _, kind = argument.partition(" ")
                if argument not in (_DICTIONARY, _TENSOR, _PARAMETER) and not (module == "torch" and kind in _DTYPES):
                    raise _refused_error(self._path, f"wants to call {argument[:60].replace(' ', '.')}")
                stack.append(_Name(argument))
            case "BINPERSID":
                _, storage, entry, _, _ = stack.pop()
                stack.append(_Storage(_DTYPES[storage.name.removeprefix("torch ")], f"data/{entry}"))
            case "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(self._call(function, arguments))
            case "BUILD":
                stack.pop()  # attributes of a dictionary of tensors, such as versions of modules, are not needed
            case _:
                raise _refused_error(self._path, f"wants to do more than describe tensors ({instruction})")

    def _pop_group(self) -> list[object]:
        """Remove and return the values on the stack since the last MARK instruction, which starts a group of values."""
        begin = self._marks.pop()
        values = self._stack[begin:]
        del self._stack[begin:]
        return values

    def _call(self, function: _Name, arguments: tuple) -> object:
        if function.name == _DICTIONARY and not arguments:
            return {}
        if function.name == _PARAMETER:
            return arguments[0]
        storage, first, shape, strides = arguments[:4]
        numbers = (first, *shape, *strides)
        if (
            function.name != _TENSOR
            or not isinstance(storage, _Storage)
            or len(numbers) > 1 + 2 * MOST_AXES
            or not all(type(number) is int and number >= 0 for number in numbers)
        ):
            raise ValueError
        return _Tensor(storage, first, tuple(shape), tuple(strides))


def _find_place(
    path: Path, raw: Any, size: int, name: str, tensor: _Tensor, entries: Mapping[str, zipfile.ZipInfo]
) -> TensorPlace:
    """Return the place of the tensor's bytes. Raises: ModelError if they are not contiguous or not in the file's `size` bytes."""
    entry, width = entries.get(tensor.storage.entry), ITEM_BYTES[tensor.storage.dtype]
    count = math.prod(tensor.shape)
    if entry is None or entry.compress_type != zipfile.ZIP_STORED or not _is_contiguous(tensor):
        raise _refused_error(path, f"has no contiguous data for {name[:80]}")
    raw.seek(entry.header_offset)
    header = raw.read(_ENTRY_HEADER)
    begin = entry.header_offset + len(header) + sum(int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    start = begin + tensor.first * width
    end = start + count * width
    if len(header) < _ENTRY_HEADER or end > min(size, begin + entry.file_size):
        what = f"{short_path(path)} is cut short: {name[:80]} ends at byte {end:,}"
        raise ModelError(what, f"and the file at {size:,}", "copy it again")
    return TensorPlace(path=path, dtype=tensor.storage.dtype, shape=tensor.shape, start=start, end=end)


def _is_contiguous(tensor: _Tensor) -> bool:
    """Return whether the tensor is contiguous, with the last axis fastest."""
    step = 1
    for length, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if length != 1 and stride != step:
            return False
        step *= length
    return True
