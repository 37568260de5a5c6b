"""Whether two hosts run the same: this project's own code, Python, and the libraries that decide what is computed."""

import hashlib
import platform
from collections.abc import Sequence
from pathlib import Path

from backend.imports import installed_version
from backend.settings import PROJECT_FOLDER

_LIBRARIES = (
    *("jax", "jaxlib", "libtpu", "torch", "torchax", "diffusers", "transformers", "tokenizers", "sentencepiece"),
    *("numpy", "pillow", "imageio-ffmpeg", "safetensors"),
)
_PARTS = ("backend", "kernels", "presets")


def versions_here() -> dict[str, str]:
    """This host's, by name; "none" for a library that is not installed."""
    own = {"python": platform.python_version(), "this project": fingerprint(data=(".json",))[:12]}
    return own | {name: installed_version(name) for name in _LIBRARIES}


def difference(first: dict[str, str], other: dict[str, str]) -> str:
    """What differs first, as a sentence with what to do; "" if nothing does."""
    for name, version in first.items():
        if other.get(name) != version:
            return f"{name} is {other.get(name)} there and {version} on the first host: install the same on every host"
    return ""


def fingerprint(project: Path = PROJECT_FOLDER, data: Sequence[str] = ()) -> str:
    """The hash of what a worker runs: code, presets, and files with these suffixes. Two machines must have the same."""
    suffixes, digest = (".py", ".toml", *data), hashlib.sha256()
    for path in sorted(path for part in _PARTS for path in (project / part).rglob("*") if path.suffix in suffixes):
        digest.update(f"{path.relative_to(project)}\0".encode() + path.read_bytes())
    return digest.hexdigest()
