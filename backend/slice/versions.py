"""Whether two hosts run the same: this project's own code, Python, and the libraries that decide what is computed."""

import hashlib
import importlib.metadata
import platform

from backend.settings import PROJECT_FOLDER

_LIBRARIES = (
    *("jax", "jaxlib", "libtpu", "torch", "torchax", "diffusers", "transformers", "tokenizers", "sentencepiece"),
    *("numpy", "pillow", "imageio-ffmpeg", "safetensors"),
)
_PARTS, _SUFFIXES = ("backend", "kernels", "presets"), (".py", ".toml", ".json")


def versions_here() -> dict[str, str]:
    """This host's, by name; "none" for a library that is not installed."""
    return {"python": platform.python_version(), "this project": _own()} | {name: _version(name) for name in _LIBRARIES}


def difference(first: dict[str, str], other: dict[str, str]) -> str:
    """What differs first, as a sentence with what to do; "" if nothing does."""
    for name, version in first.items():
        if other.get(name) != version:
            return f"{name} is {other.get(name)} there and {version} on the first host: install the same on every host"
    return ""


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _own() -> str:
    """A short hash of the files that decide what is computed."""
    digest = hashlib.sha256()
    for path in sorted(path for part in _PARTS for path in (PROJECT_FOLDER / part).rglob("*") if path.suffix in _SUFFIXES):
        digest.update(f"{path.relative_to(PROJECT_FOLDER)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
