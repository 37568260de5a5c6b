"""Checkpoints and LoRA files by their Hugging Face id: what is on this machine, and fetching what is not.

huggingface_hub downloads and checks sizes; its cache is shared with every other tool on the machine. A connection that breaks
goes on within the file; a process that was stopped goes on with the first file that is not whole (2.4.0 keeps no begun file).
Brings no JAX.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from huggingface_hub.file_download import repo_folder_name

from backend.checkpoint import open_checkpoint, weight_files
from backend.errors import ModelError

PARTS = ("transformer", "transformer_2", "vae", "text_encoder", "image_encoder", "image_processor", "scheduler")
PATTERNS = ("model_index.json", "tokenizer/*", *(f"{part}/*.{kind}" for part in PARTS for kind in ("json", "safetensors")))
OnBytes = Callable[[int, int], None]
OFFERS = "give its folder with --model, or take the preset wan-tiny, which runs anywhere"
SECONDS_BETWEEN_LOOKS = 1.0
LEFT_SECONDS = 3600  # a begun file that nobody has written to for so long is a dead download's
HIDDEN_FROM_US = (401, 403, 404)


def find_model(source: str, on_bytes: OnBytes | None = None) -> Path:
    """The folder of a checkpoint: `source` itself, or the Hub's, downloaded if need be.

    `on_bytes(done, total)` is called every second while bytes arrive. Raises: ModelError.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        if (folder / "model_index.json").is_file():
            return folder
        raise ModelError(
            f"{folder.name}", "must hold model_index.json, as diffusers writes it", "give a diffusers checkpoint folder"
        )
    if not is_hub_id(source):
        raise ModelError(f"The model {folder.name}", "is not on this machine", OFFERS)
    return cached_model(source) or download_model(source, on_bytes)


def find_file(source: str, on_bytes: OnBytes | None = None) -> Path:
    """The file "owner/repository:file", downloaded if need be. Raises: ModelError."""
    return cached_file(source) or download_file(source, on_bytes)


def is_hub_id(source: str) -> bool:
    """Whether this has the form owner/name."""
    return source.count("/") == 1 and not source.startswith(("/", ".", "~")) and ":" not in source


def cached_model(source: str) -> Path | None:
    """The folder of a checkpoint that is whole in the cache, without asking the network; None where it is not."""
    folder = _cached(source, PATTERNS)
    return folder if folder is not None and is_complete(folder) else None


def cached_file(source: str) -> Path | None:
    """The same for "owner/repository:file"."""
    repository, _, name = source.partition(":")
    folder = _cached(repository, (name,))
    return folder / name if folder is not None and (folder / name).is_file() else None


def newest_snapshot(source: str) -> Path | None:
    """The folder of a checkpoint in the cache, however incomplete; None where there is none."""
    folders = (_blobs(source).parent / "snapshots").glob("*")
    return max(folders, key=lambda folder: folder.stat().st_mtime, default=None)


def is_complete(folder: Path) -> bool:
    """Whether every file that the checkpoint's own indexes name is there."""
    try:
        checkpoint = open_checkpoint(folder)
        for part in checkpoint.parts:
            weight_files(folder, part)
    except ModelError:
        return False
    return (folder / "tokenizer").is_dir()


def download_model(source: str, on_bytes: OnBytes | None = None) -> Path:
    """Fetch the files that are not there yet. Raises: ModelError."""
    return _download(source, PATTERNS, on_bytes)


def download_file(source: str, on_bytes: OnBytes | None = None) -> Path:
    """The same for "owner/repository:file"."""
    repository, _, name = source.partition(":")
    path = _download(repository, (name,), on_bytes) / name
    if not path.is_file():
        raise ModelError(f"{source}", f"names a file that {repository} does not have", "check the name")
    return path


def _cached(repository: str, patterns: Sequence[str]) -> Path | None:
    with contextlib.suppress(LocalEntryNotFoundError, HFValidationError):
        return Path(snapshot_download(repository, allow_patterns=list(patterns), local_files_only=True))
    return None


def _download(repository: str, patterns: Sequence[str], on_bytes: OnBytes | None) -> Path:
    try:
        files = snapshot_download(repository, allow_patterns=list(patterns), dry_run=True)
        _forget_begun(_blobs(repository))
        _check_space(repository, sum(file.file_size or 0 for file in files if file.will_download))
        with _watching(_blobs(repository), sum(file.file_size or 0 for file in files), on_bytes):
            return Path(snapshot_download(repository, allow_patterns=list(patterns)))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise _explained(repository, error) from error


def _blobs(repository: str) -> Path:
    """Where the cache keeps a repository's files, those included that are only begun."""
    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model") / "blobs"


def _forget_begun(folder: Path) -> None:
    """Delete what a killed download has left: nobody can go on with it. What is written to now stays."""
    for path in folder.glob("*.incomplete"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > LEFT_SECONDS:
                path.unlink()


def _check_space(repository: str, needed: int) -> None:
    there = next(folder for folder in (Path(constants.HF_HUB_CACHE), *Path(constants.HF_HUB_CACHE).parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise ModelError(f"{repository} needs {needed / 1e9:.1f} GB more", f"and the disk has {free / 1e9:.1f} GB free",
                         "free some, or let HF_HOME name a folder on a larger disk")  # fmt: skip


@contextlib.contextmanager
def _watching(folder: Path, total: int, on_bytes: OnBytes | None) -> Iterator[None]:
    """Tells every second how many bytes have arrived, by looking at the files: what an earlier try left counts."""
    if on_bytes is None:
        yield
        return
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(SECONDS_BETWEEN_LOOKS):
            on_bytes(min(_size(folder), total), total)

    thread = threading.Thread(target=look, name="download", daemon=True)
    thread.start()
    try:
        yield
        on_bytes(total, total)
    finally:
        ended.set()
        thread.join()


def _size(folder: Path) -> int:
    sizes = 0
    for path in folder.glob("*"):
        with contextlib.suppress(OSError):  # it may have got its final name just now
            sizes += path.stat().st_size
    return sizes


def _explained(repository: str, error: Exception) -> ModelError:
    cause = error if isinstance(error, HfHubHTTPError) else error.__cause__
    status = getattr(getattr(cause, "response", None), "status_code", None)
    if status in HIDDEN_FROM_US or isinstance(error, HFValidationError):
        return ModelError(f"{repository}", "is not on the Hugging Face Hub, or not for everybody",
                          "check the id, or log in with `hf auth login`")  # fmt: skip
    if getattr(error, "errno", None) == errno.ENOSPC:
        return ModelError(f"The disk is full while {repository} is downloaded:", "what has arrived is kept", "free some space")
    fetch = f"run `python app.py models download {repository}` where there is a network"
    return ModelError(f"{repository} is not on this machine, and the Hugging Face Hub cannot be reached",
                      f"({type(cause or error).__name__})", f"{fetch}, or {OFFERS}")  # fmt: skip
