"""Remember kernels that fail, crash or hang in their first run, so that this process and later processes do not use them.

Before the first run of a program with our kernels, a file with the kernels' uses (`kernel_fallbacks`) is written and locked.
After the run it is deleted. If the process ends during the run, the file remains without a lock, so later processes avoid the
kernels.
"""

import contextlib
import dataclasses
import faulthandler
import fcntl
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
from backend.imports import installed_version
from backend.runtime.kernel_fallbacks import KernelFallbacks

KEPT_SECONDS = 24 * 3600.0  # after this time the kernels are tried again, because something else may have caused the crash
HANGS_SECONDS = 600.0  # a longer first run counts as hung; the limit includes the time in which other hosts still compile
EXCUSED_SECONDS = 60.0  # if a process ends on request this soon after a first run starts, the run does not count as a crash
_SUFFIX = ".first-run"
_REASON_LENGTH = 160
_OTHER_FAULTS = ("RESOURCE_EXHAUSTED", "UNAVAILABLE", "ABORTED", "DATA_LOSS", "DEADLINE_EXCEEDED")

logger = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class KernelCrashGuard:
    """Guards the first run of each program of one process. Writes no files before `withdraw_recorded` sets the folder."""

    fallbacks: KernelFallbacks
    _folder: Path | None = dataclasses.field(default=None, init=False)
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, init=False)
    # start time of each current first run, by its record file, in monotonic seconds
    _running: dict[Path, float] = dataclasses.field(default_factory=dict, init=False)

    def withdraw_recorded(self, folder: Path, combine_uses: Callable[[str], list[str]] = lambda own: [own]) -> None:
        """Withdraw the kernels that files in `folder` name. From now on, the guard also writes its records to `folder`.

        `combine_uses` sends the uses that this host withdraws, separated by commas, to the other hosts, and returns each host's
        uses.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        recorded = {use: why for path in sorted(folder.glob(f"*{_SUFFIX}")) for use, why in _read_record(path).items()}
        others = {use for uses_of_host in combine_uses(",".join(sorted(recorded))) for use in uses_of_host.split(",") if use}
        for use in sorted(others):
            self.fallbacks.withdraw([use], recorded.get(use, "failed on another host"))

    @contextlib.contextmanager
    def guard_first_run(self, program: str, uses: Collection[str]) -> Generator[None]:
        """Guard the first run of a program, which the `with` block must start and await. `uses` are the uses of its kernels.

        Ends the process if the run takes longer than `HANGS_SECONDS`. Raises: KernelRefused instead of a `JaxRuntimeError` that
        a kernel may have caused.
        """
        if not uses:
            yield
            return
        file, path, reasons = None, Path(), []
        with contextlib.ExitStack() as stack:
            if self._folder is not None:
                path = self._folder / f"{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"
                file = stack.enter_context(path.open("w+"))
                fcntl.flock(file, fcntl.LOCK_EX)
                _write_record(file, uses, f"ended or hung the process when it first ran here, in {program}")
                with self._lock:
                    self._running[path] = time.monotonic()
            faulthandler.dump_traceback_later(HANGS_SECONDS, exit=True)
            try:
                yield
            except jax.errors.JaxRuntimeError as error:
                if str(error).startswith(_OTHER_FAULTS):
                    raise
                why = f"failed when it first ran here, in {program} ({one_line(str(error))[:_REASON_LENGTH]})"
                reasons.append(why)
                self.fallbacks.withdraw(uses, why)
                raise KernelRefused(f"A kernel in {program}", "failed when it first ran here") from error
            finally:
                faulthandler.cancel_dump_traceback_later()
                if file is not None:
                    with self._lock:
                        del self._running[path]
                    if reasons:
                        _write_record(file, uses, *reasons)
                    else:
                        path.unlink(missing_ok=True)

    def forget_recent_runs(self) -> None:
        """Delete the records of runs that started less than `EXCUSED_SECONDS` ago, before the process ends on request."""
        with self._lock:
            started, now = dict(self._running), time.monotonic()
        for path, since in started.items():
            if now - since < EXCUSED_SECONDS:
                path.unlink(missing_ok=True)


def _write_record(file: IO[str], uses: Collection[str], why: str) -> None:
    """Write the record of a first run, and flush it to disk, so that it survives a crash of the process."""
    file.seek(0)
    file.truncate()
    file.write(json.dumps({"uses": sorted(uses), "why": why, "versions": _installed_versions()}))
    file.flush()
    os.fsync(file.fileno())


def _read_record(path: Path) -> dict[str, str]:
    """Return the kernel uses in this file, each with the reason to withdraw its kernels, {} while the writing process runs.

    Delete the file if it is too old, broken, or from other versions of the libraries.
    """
    try:
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return {}
            left = json.load(file)
            if left["versions"] == _installed_versions() and time.time() - path.stat().st_mtime < KEPT_SECONDS:
                return {use: left["why"] for use in left["uses"]}
    except FileNotFoundError:  # another process has deleted the file
        return {}
    except (ValueError, KeyError, TypeError):
        logger.warning("%s is incomplete and is deleted", path)
    path.unlink(missing_ok=True)
    return {}


def _installed_versions() -> dict[str, str]:
    versions = {name: installed_version(name, "") for name in ("jax", "jaxlib", "libtpu")}
    return {name: version for name, version in versions.items() if version}
