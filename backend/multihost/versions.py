"""Compare the versions of two hosts: this project's code, Python, and the libraries that affect results."""

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
    """Return this host's versions by name, "none" for a library that is not installed."""
    own = {"python": platform.python_version(), "this project": fingerprint(data=(".json",))[:12]}
    return own | {name: installed_version(name) for name in _LIBRARIES}


def describe_difference(first: dict[str, str], other: dict[str, str]) -> str:
    """Return a sentence that states the first difference and the fix, "" if the versions are equal."""
    for name, version in first.items():
        if other.get(name) != version:
            return f"{name} is {other.get(name)} there and {version} on the first host: install the same on every host"
    return ""


def fingerprint(project: Path = PROJECT_FOLDER, data: Sequence[str] = ()) -> str:
    """Return a hash of the project's code and presets, and of further files with a suffix in `data`, such as ".json"."""
    suffixes, digest = (".py", ".toml", *data), hashlib.sha256()
    for path in sorted(path for part in _PARTS for path in (project / part).rglob("*") if path.suffix in suffixes):
        digest.update(f"{path.relative_to(project)}\0".encode() + path.read_bytes())
    return digest.hexdigest()
