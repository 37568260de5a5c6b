"""Files that outlive a run of the tests, in the user's cache folder: compiled programs and reference results of diffusers.

All of it may be deleted at any time, and a run without it gives the same verdicts. `STUDIO_TEST_CACHE` names another folder.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from backend.files import replace_file
from backend.schemas.request import GenerationRequest

PACKAGES = ("jax", "jaxlib", "libtpu", "numpy", "torch", "diffusers", "transformers")
FLAGS = ("XLA_FLAGS", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
PARITY = Path(__file__).parent / "parity"
_BEING_WRITTEN = 60.0  # seconds after the last change in which another process may still write the file


def folder() -> Path:
    """Return the cache folder for the installed versions, the flags and the processor."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wan-tpu-studio" / "tests"
    versions = [platform.python_version(), *map(_version, PACKAGES)]
    flags = [os.environ.get(name, "") for name in FLAGS]
    return Path(os.environ.get("STUDIO_TEST_CACHE") or usual) / digest(versions, flags, _processor())[:16]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _processor() -> str:
    """Return the processor's features. Programs that were compiled for other features may fail here."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def programs() -> Path:
    """Return the folder of compiled programs. JAX names each file by a digest of the program and its options.

    Incomplete files are removed, because JAX would compile the program but never replace the file.
    """
    place = folder() / "programs"
    place.mkdir(parents=True, exist_ok=True)
    for path in place.glob("*-cache"):
        if not _is_whole(path):
            path.unlink(missing_ok=True)
    return place


def _is_whole(path: Path) -> bool:
    """Return whether the file's checksum is right. True also if another process may still write the file."""
    try:
        if time.time() - path.stat().st_mtime > _BEING_WRITTEN:
            zlib.decompress(path.read_bytes())
    except zlib.error:
        return False
    except FileNotFoundError:  # another process has removed the file
        pass
    return True


def kept(make: Callable[[], np.ndarray], *facts: object) -> np.ndarray:
    """Return the array of `make`, from the file of an earlier call with the same facts if possible.

    `facts` must contain everything that determines the array: values, arrays, requests or paths, which count by content.
    Versions and the code in `tests/parity` always count. A damaged file is replaced.
    """
    code = digest(*sorted(PARITY.glob("*.py")))
    path = folder() / "references" / f"{digest(code, *facts)}.npz"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return stored["made"]
    except (OSError, ValueError, KeyError, EOFError, zlib.error, zipfile.BadZipFile):
        made = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as part, part.open("wb") as file:
        np.savez(file, made=made)
    return made


def digest(*facts: object) -> str:
    """Return a digest of the facts. Paths count by the content of the file, requests by the content of their input files."""
    total = hashlib.sha256()
    for fact in facts:
        content = _bytes(fact)
        total.update(f"{type(fact).__name__} {len(content)} ".encode() + content)
    return total.hexdigest()


def _bytes(fact: object) -> bytes:
    if isinstance(fact, bytes):
        return fact
    if isinstance(fact, np.ndarray):
        return f"{fact.dtype} {fact.shape} ".encode() + fact.tobytes()
    if isinstance(fact, Path):
        files = sorted(fact.rglob("*")) if fact.is_dir() else [fact]
        return "".join(digest(one.name, one.read_bytes()) for one in files if one.is_file()).encode()
    if isinstance(fact, GenerationRequest):
        inputs = [Path(path) for paths in fact.inputs().values() for path in paths]
        return digest(json.dumps(fact.for_sharing(), sort_keys=True), *inputs).encode()
    return json.dumps(fact, sort_keys=True).encode()
