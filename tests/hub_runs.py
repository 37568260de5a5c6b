"""The studio's command line in a separate process, with a Hub on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from backend.settings import PROJECT_FOLDER
from presets import load_preset
from tests.fake_hub import COMMIT, REPOSITORY, FakeHub, serving

DEMO = Path(load_preset("wan-tiny").model_source)
NOWHERE = "http://127.0.0.1:9"  # the discard port: nobody listens
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@contextmanager
def demo_hub(place: Path, repository: str = REPOSITORY) -> Iterator[FakeHub]:
    """Run a Hub that offers the demo model and a LoRA."""
    folder = Path(shutil.copytree(DEMO, place / "offered"))
    (folder / "loras").mkdir()
    for name in ("style.safetensors", "style [v2].safetensors"):
        (folder / "loras" / name).write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    with serving(folder, repository) as hub:
        yield hub


def start(home: Path, endpoint: str, *words: str) -> subprocess.Popen:
    """Start `app.py WORDS` with all its files in `home`."""
    environment = {
        **os.environ,
        "HF_HOME": str(home),
        "HF_ENDPOINT": endpoint,
        "STUDIO_DATA_DIR": str(home / "data"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    return subprocess.Popen(
        [sys.executable, "app.py", *words],
        cwd=PROJECT_FOLDER,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def app(home: Path, endpoint: str, *words: str) -> subprocess.CompletedProcess:
    """Run `app.py WORDS` to its end, with all its files in `home`."""
    process = start(home, endpoint, *words)
    try:
        told, complained = process.communicate(timeout=120)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, told, complained)


def snapshot(home: Path, commit: str = COMMIT) -> Path:
    return repository(home) / "snapshots" / commit


def blobs(home: Path) -> Path:
    return repository(home) / "blobs"


def begun(home: Path) -> list[int]:
    """Return the current sizes of incomplete downloads, in bytes."""
    sizes = []
    for path in blobs(home).glob("*.incomplete"):
        with suppress(FileNotFoundError):  # the download has ended
            sizes.append(path.stat().st_size)
    return sizes


def blobs_of(home: Path, model: str) -> Path:
    return home / "hub" / f"models--{model.replace('/', '--')}" / "blobs"


def repository(home: Path) -> Path:
    return home / "hub" / f"models--{REPOSITORY.replace('/', '--')}"
