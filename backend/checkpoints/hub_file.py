"""Downloads one file of the Hugging Face Hub into this machine's cache, and continues with the bytes that a killed process left.

huggingface_hub 2.4.0 receives a file under a name of its own process and deletes it however that process ends, in its local_dir
mode and through hf_xet too (`file_download._download_to_tmp_and_move`). So a machine that goes down at 9 of 10 GB would start
again from zero. Here a begun file is called `<hash>.incomplete` in the cache's folder of blobs, and only the missing bytes are
requested over HTTP. The library's own lock guards it: a second process, ours or any tool's that uses the cache, waits.
Does not import JAX.
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
from backend.files import hash_like

SECONDS_BETWEEN_TRIES = 1.0  # to get the lock; a waiting download stops within this time


@dataclass(frozen=True, kw_only=True)
class HubFile:
    """A file at one commit. `content_hash`, its name in the cache, is SHA-256 for a large file, git's SHA-1 for a small one."""

    repository: str
    commit: str
    name: str
    content_hash: str
    num_bytes: int

    @property
    def blob(self) -> Path:
        """Where the whole file lies."""
        return blobs_folder(self.repository) / self.content_hash

    @property
    def begun(self) -> Path:
        """Where it lies until it is whole."""
        return self.blob.with_name(f"{self.content_hash}.incomplete")

    @property
    def arrived_bytes(self) -> int:
        """How many of its bytes are on this machine."""
        for path in (self.blob, self.begun, self.blob):  # it may have got its final name just now
            with contextlib.suppress(OSError):
                return path.stat().st_size
        return 0


def blobs_folder(repository: str) -> Path:
    """Where the cache keeps a repository's files under the hashes of their contents."""
    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model") / "blobs"


def bytes_here(repository: str) -> int:
    """How many bytes of a repository are on this machine, begun files included."""
    num_bytes = 0
    for path in blobs_folder(repository).glob("*"):
        with contextlib.suppress(OSError):
            num_bytes += path.stat().st_size
    return num_bytes


def fetch(file: HubFile, stopped: threading.Event) -> None:
    """Bring the whole file to its place, unless it is there. Ends within one chunk (10 MiB) of `stopped`; what has arrived stays.

    Raises: Stopped; ModelError if the bytes have another hash than the Hub names (they are removed); OSError;
    httpx2.TransportError if the connection broke and another try brought no more bytes.
    """
    with contextlib.ExitStack() as locks:
        _wait_for_lock(locks, file, stopped)
        if file.blob.exists():
            return
        file.blob.parent.mkdir(parents=True, exist_ok=True)
        _receive(file, stopped)
        _check(file)
        file.begun.replace(file.blob)


def forget_begun(repository: str, wanted: set[str]) -> None:
    """Delete begun files that no download can continue: their hash is not in `wanted`, or the library began them. A file that
    another process is writing stays."""
    for path in blobs_folder(repository).glob("*.incomplete"):
        content_hash, _, process = path.stem.partition(".")
        if process or content_hash not in wanted:
            with contextlib.suppress(OSError, Timeout), WeakFileLock(_lock(repository, content_hash), timeout=0.1):
                path.unlink()


def _lock(repository: str, content_hash: str) -> Path:
    """The file that the library locks while it downloads."""
    folder = Path(constants.HF_HUB_CACHE) / ".locks" / blobs_folder(repository).parent.name
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{content_hash}.lock"


def _wait_for_lock(locks: contextlib.ExitStack, file: HubFile, stopped: threading.Event) -> None:
    path = _lock(file.repository, file.content_hash)
    while not stopped.is_set():
        with contextlib.suppress(Timeout):
            locks.enter_context(WeakFileLock(path, timeout=SECONDS_BETWEEN_TRIES))
            return
    raise Stopped


def _receive(file: HubFile, stopped: threading.Event) -> None:
    """Request the missing bytes until all are here. The address is the Hub's own, which sends every try to a fresh server."""
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}  # a range counts in the file's own bytes
    url = hf_hub_url(file.repository, file.name, revision=file.commit)
    if file.arrived_bytes > file.num_bytes:
        file.begun.unlink()
    while True:
        before = file.arrived_bytes
        try:
            with _Begun(file.begun, stopped) as out:
                silent: Any = silent_tqdm  # the library's own, though no subclass of what the parameter names
                http_get(url, out, resume_size=before, headers=headers, expected_size=file.num_bytes, tqdm_class=silent)
            return
        except httpx2.TransportError:  # the library tries again after some kinds only
            if file.arrived_bytes <= before:
                raise


class _Begun(io.BufferedWriter):
    """A begun file, open to append. Raises Stopped at the next write after `stopped`."""

    def __init__(self, path: Path, stopped: threading.Event) -> None:
        super().__init__(io.FileIO(path, "ab"))
        self._stopped = stopped

    def write(self, chunk: bytes) -> int:
        if self._stopped.is_set():
            raise Stopped
        return super().write(chunk)


def _check(file: HubFile) -> None:
    """Write the bytes through to the disk. Raises: ModelError if their hash is wrong; the file is then deleted."""
    content_hash = hash_like(file.begun, file.content_hash)
    if content_hash != file.content_hash:
        file.begun.unlink()
        raise ModelError(
            f"{file.repository}: {file.name} arrived with the hash {content_hash[:12]}...",
            f"and must have {file.content_hash[:12]}...; it was removed",
            "download again",
        )
    with file.begun.open("rb") as whole:
        os.fsync(whole.fileno())  # before it gets its final name: a file of that name counts as whole, even after a power cut
