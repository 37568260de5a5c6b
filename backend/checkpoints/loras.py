"""List, find and add LoRA files in the data folder's `loras` folder. Reads no weights.

A request contains a LoRA's name, never a path, so a web page can only reach the files of this folder.
"""

from pathlib import Path
from typing import NamedTuple

from backend.errors import RequestError
from backend.files import have_same_content, link_or_copy

SUFFIX = ".safetensors"


class LoraName(NamedTuple):
    """A name that LoRA files use for a module.

    A file can store several modules as one matrix, one below the other. `part` is this module's index of `parts`, from 0.
    """

    name: str
    part: int = 0
    parts: int = 1


def list_loras(folder: Path) -> list[str]:
    """Return the names of the LoRA files in the folder, for `LoraChoice.source`."""
    return sorted(path.name for path in folder.glob(f"*{SUFFIX}") if path.is_file() and not path.name.startswith("."))


def find_lora(name: str, folder: Path) -> Path:
    """Return the file of this name in the folder. Raises: RequestError, which lists the names."""
    if name not in list_loras(folder):  # a name is never used as a path
        names = ", ".join(list_loras(folder)) or "nothing"
        rule = f"must be a file in the data folder's loras folder, which contains {names}"
        raise RequestError(f"the LoRA {name!r}", rule, "put it there, or give --lora its path on the command line")
    return folder / name


def is_hub_source(source: str) -> bool:
    """Return whether the source is "owner/repository:file.safetensors" and not an existing path."""
    owner, _, rest = source.partition("/")
    return bool(owner) and ":" in rest and not Path(source).exists()


def check_lora(source: str, folder: Path) -> None:
    """Check a path or name from the command line. Raises: RequestError if `adopt_lora` cannot add it."""
    if is_hub_source(source):
        return
    path = _resolve_path(source, folder)
    if path.suffix != SUFFIX or not path.is_file():
        rule = f"must be a {SUFFIX} file, a name in the data folder's loras folder, or owner/repository:file.safetensors"
        raise RequestError(f"lora={source!r}", rule, "check the path")
    existing = folder / path.name
    if existing.exists() and not have_same_content(existing, path):
        what = f"lora={source!r} has the name of another LoRA that was used before, and"
        raise RequestError(what, "a name must stay with its file, so that a video can be regenerated", "rename it")


def adopt_lora(source: str, folder: Path) -> None:
    """Add a file that has passed `check_lora` to the folder, as a hard link if the file system allows it."""
    if is_hub_source(source):
        return
    path = _resolve_path(source, folder)
    if not (folder / path.name).exists():
        folder.mkdir(parents=True, exist_ok=True)
        link_or_copy(path, folder / path.name)


def _resolve_path(source: str, folder: Path) -> Path:
    path = Path(source).expanduser()
    return path if path.exists() else folder / path.name if path.name == source else path
