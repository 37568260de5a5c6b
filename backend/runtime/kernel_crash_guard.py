"""Kernels that fail when they first run, or kill or hang the process, are done without: by it, and by the processes after it.

Before a program with kernels of ours runs for the first time, a file says so; when it has run, the file is removed. One that no
living process holds names kernels that did not come back.
"""

import contextlib
import faulthandler
import fcntl
import importlib.metadata
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Generator
from pathlib import Path
from typing import IO

import jax

from backend.errors import KernelRefused, one_line
from backend.runtime.kernel_fallbacks import KERNEL_FALLBACKS, KernelFallbacks

KEPT_SECONDS = 24 * 3600.0  # after that the kernels are tried again: it may have been something else
HANGS_SECONDS = 600.0  # a program has run by then; on several hosts the others may still be compiling it
EXCUSED_SECONDS = 60.0  # a process that is asked to end so soon says nothing about the kernels that it runs
_SUFFIX = ".first-run"
_REASON_LENGTH = 160
_OTHER_FAULTS = ("RESOURCE_EXHAUSTED", "UNAVAILABLE", "ABORTED", "DATA_LOSS", "DEADLINE_EXCEEDED")

logger = logging.getLogger(__name__)


class FirstRuns:
    """One process's. Without a folder (see `recall`) nothing outlives it."""

    def __init__(self, refusals: KernelFallbacks) -> None:
        self._refusals = refusals
        self._folder: Path | None = None
        self._lock = threading.Lock()
        self._running: dict[Path, float] = {}  # since when, in monotonic seconds

    def recall(self, folder: Path, agree: Callable[[str], list[str]] = lambda own: [own]) -> None:
        """Does without what the files in `folder` name, and keeps this process's there. `agree` turns the uses of kernels that
        this host does without into those of all hosts."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        found = {use: why for path in sorted(folder.glob(f"*{_SUFFIX}")) for use, why in _left_in(path).items()}
        others = {use for said in agree(",".join(sorted(found))) for use in said.split(",") if use}
        for use in sorted(others):
            self._refusals.withdraw([use], found.get(use, "failed on another host"))

    @contextlib.contextmanager
    def watch(self, program: str, uses: Collection[str]) -> Generator[None]:
        """Around the first run of a program with these uses of kernels, which must be over when the block ends. Ends the process
        if it takes `HANGS_SECONDS`. Raises: KernelRefused in place of an error of the runtime that may be the kernels' fault."""
        if not uses:
            yield
            return
        with self._noted(program, uses) as note:
            faulthandler.dump_traceback_later(HANGS_SECONDS, exit=True)
            try:
                yield
            except jax.errors.JaxRuntimeError as error:
                if str(error).startswith(_OTHER_FAULTS):
                    raise
                why = f"failed when it first ran here, in {program} ({one_line(str(error))[:_REASON_LENGTH]})"
                note(why)
                self._refusals.withdraw(uses, why)
                raise KernelRefused(f"A kernel in {program}", "failed when it first ran here") from error
            finally:
                faulthandler.cancel_dump_traceback_later()

    def excuse(self) -> None:
        """Forgets the runs that have just begun: this process is asked to end."""
        with self._lock:
            begun, now = dict(self._running), time.monotonic()
        for path, since in begun.items():
            if now - since < EXCUSED_SECONDS:
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _noted(self, program: str, uses: Collection[str]) -> Generator[Callable[[str], None]]:
        """A file while the block runs. The block may call what it is given with the reason why the file must stay."""
        if self._folder is None:
            yield lambda why: None
            return
        path = self._folder / f"{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"
        why_kept = []
        with path.open("w+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _write(file, uses, f"ended or hung the process when it first ran here, in {program}")
            with self._lock:
                self._running[path] = time.monotonic()
            try:
                yield why_kept.append
            finally:
                with self._lock:
                    del self._running[path]
                if why_kept:
                    _write(file, uses, why_kept[0])
                else:
                    path.unlink(missing_ok=True)


def _write(file: IO[str], uses: Collection[str], why: str) -> None:
    """What a file holds; the disk has it before the kernels run."""
    file.seek(0)
    file.truncate()
    file.write(json.dumps({"uses": sorted(uses), "why": why, "versions": _versions()}))
    file.flush()
    os.fsync(file.fileno())


def _left_in(path: Path) -> dict[str, str]:
    """The uses of kernels that this file names, and why they are done without; nothing if the process lives. Files that are too
    old, of other versions or not whole are removed."""
    try:
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return {}
            left = json.load(file)
            if left["versions"] == _versions() and time.time() - path.stat().st_mtime < KEPT_SECONDS:
                return {use: left["why"] for use in left["uses"]}
    except FileNotFoundError:  # another process was faster
        return {}
    except (ValueError, KeyError, TypeError):
        logger.warning("%s is not whole and is removed", path)
    path.unlink(missing_ok=True)
    return {}


def _versions() -> dict[str, str]:
    found = {}
    for name in ("jax", "jaxlib", "libtpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


FIRST_RUNS = FirstRuns(KERNEL_FALLBACKS)
"""This process's."""
