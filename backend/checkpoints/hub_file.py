"""Download one file of the Hugging Face Hub into this machine's cache, and resume with the bytes that a killed process left.

huggingface_hub 2.4.0 loses an unfinished file when the downloading process ends. Here an unfinished file is named
`<hash>.incomplete` in the cache's folder of blobs, and only the missing bytes are requested over HTTP. The library's own lock
guards the file, so other processes that use the cache wait.
"""

import contextlib
import io
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from filelock import Timeout
from huggingface_hub import constants, hf_hub_url
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.utils import WeakFileLock, build_hf_headers, silent_tqdm

from backend.errors import ModelError, Stopped
from backend.files import hash_file

SECONDS_BETWEEN_TRIES = 1.0  # time between tries to get the lock; a waiting download stops within this time


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """A file of a Hub repository at one commit. The cache names the file by `content_hash`.

    The hash is SHA-256 for a large file, and git's blob hash (SHA-1) for a small file.
    """

    repository: str
    commit: str
    name: str
    content_hash: str
    num_bytes: int

    @property
    def blob_path(self) -> Path:
        return blobs_folder(self.repository) / self.content_hash

    @property
    def unfinished_path(self) -> Path:
        return self.blob_path.with_name(f"{self.content_hash}.incomplete")

    @property
    def arrived_bytes(self) -> int:
        # The complete file is looked up twice, because a download may rename the unfinished file after the first lookup.
        for path in (self.blob_path, self.unfinished_path, self.blob_path):
            with contextlib.suppress(OSError):
                return path.stat().st_size
        return 0


def blobs_folder(repository: str) -> Path:
    """Return the folder in which the cache stores a repository's files, named by their hashes."""
    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model") / "blobs"


def count_cached_bytes(repository: str) -> int:
    """Return how many bytes of a repository are on this machine, incomplete files included."""
    num_bytes = 0
    for path in blobs_folder(repository).glob("*"):
        with contextlib.suppress(OSError):
            num_bytes += path.stat().st_size
    return num_bytes


def download_to_cache(file: HubFile, stopped: threading.Event) -> None:
    """Download the file unless it exists. Ends within one chunk (10 MiB) after `stopped` is set; received bytes are kept.

    Raises: Stopped; ModelError if the received bytes have another hash than the Hub states (they are deleted); OSError;
    httpx2.TransportError if the connection broke and another try received no more bytes.
    """
    lock_path = _lock_path(file.repository, file.content_hash)
    with contextlib.ExitStack() as locks:
        while True:
            if stopped.is_set():
                raise Stopped
            with contextlib.suppress(Timeout):
                locks.enter_context(WeakFileLock(lock_path, timeout=SECONDS_BETWEEN_TRIES))
                break
        if file.blob_path.exists():
            return
        file.blob_path.parent.mkdir(parents=True, exist_ok=True)
        _receive_missing_bytes(file, stopped)
        content_hash = hash_file(file.unfinished_path, file.content_hash)
        if content_hash != file.content_hash:
            file.unfinished_path.unlink()
            what = f"{file.repository}: {file.name} arrived with the hash {content_hash[:12]}..."
            raise ModelError(what, f"and must have {file.content_hash[:12]}...; it was removed", "download again")
        with file.unfinished_path.open("rb") as whole:
            os.fsync(whole.fileno())  # a file with the final name counts as complete, even after a power failure
        file.unfinished_path.replace(file.blob_path)


def delete_unfinished(repository: str, wanted: set[str]) -> None:
    """Delete incomplete files that no download can resume: their hash is not in `wanted`, or huggingface_hub created them.

    A file that another process is writing is kept.
    """
    for path in blobs_folder(repository).glob("*.incomplete"):
        content_hash, _, process = path.stem.partition(".")
        if process or content_hash not in wanted:
            with contextlib.suppress(OSError, Timeout), WeakFileLock(_lock_path(repository, content_hash), timeout=0.1):
                path.unlink()


def _lock_path(repository: str, content_hash: str) -> Path:
    """Return the path of the file that huggingface_hub locks while it downloads, and create its folder."""
    folder = Path(constants.HF_HUB_CACHE) / ".locks" / blobs_folder(repository).parent.name
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{content_hash}.lock"


def _receive_missing_bytes(file: HubFile, stopped: threading.Event) -> None:
    """Request the missing bytes until all are received. Each try asks the Hub again for the download server."""
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}  # byte ranges must refer to the uncompressed file
    url = hf_hub_url(file.repository, file.name, revision=file.commit)
    if file.arrived_bytes > file.num_bytes:
        file.unfinished_path.unlink()
    while True:
        before = file.arrived_bytes
        try:
            with _UnfinishedFile(file.unfinished_path, stopped) as out:
                # The type is `Any`, because the library's own `silent_tqdm` is no subclass of the type that `tqdm_class` states
                silent: Any = silent_tqdm
                http_get(url, out, resume_size=before, headers=headers, expected_size=file.num_bytes, tqdm_class=silent)
            return
        except httpx2.TransportError:  # this loop retries, because `http_get` retries only after some of these errors
            if file.arrived_bytes <= before:
                raise


class _UnfinishedFile(io.BufferedWriter):
    """An incomplete file, open to append. The next write after `stopped` is set raises Stopped."""

    def __init__(self, path: Path, stopped: threading.Event) -> None:
        super().__init__(io.FileIO(path, "ab"))
        self._stopped = stopped

    def write(self, chunk: bytes) -> int:
        if self._stopped.is_set():
            raise Stopped
        return super().write(chunk)
