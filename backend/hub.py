"""Checkpoints and LoRA files by their Hugging Face id: what is on this machine, and fetching what is not.

huggingface_hub downloads, resumes and checks; its cache is shared with every other tool on the machine. Brings no JAX.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from tqdm.auto import tqdm

from backend.errors import ModelError

PATTERNS = ("model_index.json", "*/*.json", "*/*.safetensors", "tokenizer/*")
OnBytes = Callable[[int, int], None]
OFFERS = "give its folder with --model, or take the preset wan-tiny, which runs anywhere"


def find_model(source: str, on_bytes: OnBytes | None = None) -> Path:
    """The folder of a checkpoint: `source` itself, or the Hub's, downloaded if need be.

    `on_bytes(done, total)` is called while bytes arrive. Raises: ModelError.
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


def is_hub_id(source: str) -> bool:
    """Whether this has the form owner/name."""
    return source.count("/") == 1 and not source.startswith(("/", ".", "~"))


def cached_model(source: str) -> Path | None:
    """The folder of a checkpoint that is whole in the cache, without asking the network; None where it is not."""
    try:
        folder = Path(snapshot_download(source, allow_patterns=list(PATTERNS), local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return folder if is_complete(folder) else None


def is_complete(folder: Path) -> bool:
    """Whether every file that the checkpoint's own indexes name is there."""
    from backend.checkpoint import open_checkpoint, weight_files

    try:
        checkpoint = open_checkpoint(folder)
        for part in checkpoint.parts:
            weight_files(folder, part)
    except ModelError:
        return False
    return (folder / "tokenizer").is_dir()


def download_model(source: str, on_bytes: OnBytes | None = None) -> Path:
    """Fetch what is missing; a download that was stopped goes on where it was. Raises: ModelError."""
    return Path(_fetch(source, lambda progress: snapshot_download(
        source, allow_patterns=list(PATTERNS), tqdm_class=_reporter(on_bytes)), on_bytes))  # fmt: skip


def find_file(source: str, on_bytes: OnBytes | None = None) -> Path:
    """The file "owner/repository:file", downloaded if need be. Raises: ModelError."""
    repository, _, name = source.partition(":")
    try:
        return Path(hf_hub_download(repository, name, local_files_only=True))
    except LocalEntryNotFoundError:
        return Path(_fetch(source, lambda progress: hf_hub_download(repository, name, tqdm_class=_reporter(on_bytes)), on_bytes))


def _fetch(source: str, download: Callable[[Any], str], on_bytes: OnBytes | None) -> str:
    try:
        return download(on_bytes)
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        if status in (401, 403, 404):
            raise ModelError(f"{source}", "is not on the Hugging Face Hub, or not for everybody",
                             "check the id, or log in with `hf auth login`") from None  # fmt: skip
        raise _unreachable(source, error) from None
    except (LocalEntryNotFoundError, OSError) as error:
        raise _unreachable(source, error) from None


def _unreachable(source: str, error: Exception) -> ModelError:
    fetch = f"run `python app.py models download {source.partition(':')[0]}` where there is a network"
    return ModelError(f"{source} is not on this machine, and the Hugging Face Hub cannot be reached", f"({type(error).__name__})",
                      f"{fetch}, or {OFFERS}")  # fmt: skip


def _reporter(on_bytes: OnBytes | None) -> type[tqdm]:
    """A progress bar that draws nothing and adds up the bytes of all files."""
    totals: dict[int, tuple[int, int]] = {}
    lock = threading.Lock()

    class Reporter(tqdm):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self._counts_bytes = options.get("unit") == "B"
            super().__init__(*arguments, **{**options, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            self.n += n or 0
            if self._counts_bytes and on_bytes is not None:
                with lock:
                    totals[id(self)] = (int(self.n), int(self.total or 0))
                    on_bytes(*(sum(values) for values in zip(*totals.values(), strict=True)))
            return None

    return Reporter
