"""Downloads checkpoints and LoRA files for the page, one after the other, each in a process of its own.

What has arrived of a file stays when a download is paused, fails, or the server ends, and the next one goes on with it
(`backend.checkpoints.hub_file`). Only the sizes that the Hub has told are written down, so that a download which a server's end
has cut off is shown as paused, with its share.
"""

import contextlib
import json
import logging
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from backend.checkpoints.speed import Speed
from backend.child_process import start_module
from backend.files import replacing
from backend.settings import PROJECT_FOLDER, Settings, worker_environment

Phase = Literal["waiting", "asking", "running", "pausing", "failed"]
"""`asking`: the Hub is asked for sizes, no byte has come yet."""
_MODULE = "backend.catalog.download_run"
_END_SECONDS = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Download:
    """One download that waits, runs or has failed for the reason `cause`, and what helps: `fix`. The total is 0 while the Hub has
    not said it, the speed 0 while it is not known."""

    source: str
    phase: Phase
    bytes_done: int = 0
    bytes_total: int = 0
    bytes_per_second: float = 0.0
    cause: str = ""
    fix: str = ""

    @property
    def is_active(self) -> bool:
        """Whether it waits or runs."""
        return self.phase != "failed"


class Downloads:
    """The downloads of one server. `on_change` is called when one begins or ends, from any thread."""

    def __init__(self, settings: Settings, on_change: Callable[[], None]):
        self._settings, self._on_change = settings, on_change
        self._lock = threading.Lock()
        self._shown: dict[str, Download] = {}  # by source, in the order in which they were asked for
        self._process: subprocess.Popen | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._file = settings.data_dir / "downloads.json"
        self._totals = self._read_totals()

    def all(self) -> list[Download]:
        """Those that wait, run or have failed, in the order in which they were asked for."""
        with self._lock:
            return list(self._shown.values())

    def total(self, source: str) -> int:
        """The bytes of this source, as the Hub has told them once; 0 if it has not been asked."""
        with self._lock:
            return self._totals.get(source, 0)

    def begin(self, source: str) -> None:
        """Puts it in line; does nothing if it waits or runs already."""
        with self._lock:
            download = self._shown.get(source)
            if self._is_closed or (download is not None and download.is_active):
                return
            self._shown.pop(source, None)
            self._shown[source] = Download(source=source, phase="waiting", bytes_total=self._totals.get(source, 0))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="downloads", daemon=True)
                self._thread.start()
        self._on_change()

    def pause(self, source: str) -> None:
        """Takes it out of the line, or ends its process; what has arrived stays. A failure is forgotten."""
        with self._lock:
            download = self._shown.get(source)
            if download is None:
                return
            if download.phase in ("asking", "running"):
                self._shown[source] = replace(download, phase="pausing")
                self._end_process()
            elif download.phase != "pausing":
                del self._shown[source]
        self._on_change()

    def forget(self, source: str) -> None:
        """Forgets the size of one that was removed, and why it failed."""
        with self._lock:
            self._shown.pop(source, None)
            self._totals.pop(source, None)
            self._write_totals()

    def close(self) -> None:
        """Ends the download that runs; what has arrived stays."""
        with self._lock:
            self._is_closed = True
            self._shown = {source: one for source, one in self._shown.items() if one.phase not in ("waiting", "failed")}
            self._end_process()
            thread = self._thread
        if thread is not None:
            thread.join(_END_SECONDS)

    def _work(self) -> None:
        """Downloads one after the other until none waits."""
        while (source := self._next_waiting()) is not None:
            try:
                failed = self._download(source)
            except OSError as error:
                failed = Download(
                    source=source, phase="failed", cause=f"The download could not be started ({error})", fix="Try again"
                )
            with self._lock:
                is_paused = self._shown[source].phase == "pausing"
                del self._shown[source]
                if failed is not None and not is_paused:
                    self._shown[source] = failed
            self._on_change()

    def _next_waiting(self) -> str | None:
        with self._lock:
            source = next((source for source, one in self._shown.items() if one.phase == "waiting"), None)
            if source is None or self._is_closed:
                self._thread = None
                return None
            self._shown[source] = replace(self._shown[source], phase="asking")
            return source

    def _download(self, source: str) -> Download | None:
        """Runs the process to its end; what went wrong, or None."""
        speed, last = Speed(), {}
        with tempfile.TemporaryFile("w+") as errors:
            with self._lock:
                if self._shown[source].phase == "pausing" or self._is_closed:
                    return None
                self._process = process = self._start_process(source, errors)
            assert process.stdout is not None, "it was started with a pipe"
            with process:
                for line in process.stdout:
                    last = json.loads(line)
                    self._update_progress(source, last, speed)
            with self._lock:
                self._process = None
            errors.seek(0)
            error_lines = errors.read().strip().splitlines()
        if last.get("done"):
            return None
        if error_lines:
            logger.warning("The download of %s wrote: %s", source, "\n".join(error_lines[-40:]))
        last_line = error_lines[-1][:300] if error_lines else "it said nothing"
        cause = last.get("cause") or f"The download ended with {process.returncode}: {last_line}"
        return Download(source=source, phase="failed", cause=cause, fix=last.get("fix") or "Try again: it goes on where it was")

    def _start_process(self, source: str, errors: Any) -> subprocess.Popen:
        """In a session of its own: the terminal's Ctrl+C is the server's, which ends this by closing the pipe."""
        return start_module(
            _MODULE,
            [source],
            worker_environment(self._settings),
            cwd=PROJECT_FOLDER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )

    def _end_process(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _update_progress(self, source: str, message: dict[str, Any], speed: Speed) -> None:
        if "bytes" not in message:
            return
        done, total = message["bytes"]
        with self._lock:
            download = self._shown[source]
            if download.phase in ("asking", "running"):
                self._shown[source] = replace(
                    download, phase="running", bytes_done=done, bytes_total=total, bytes_per_second=speed(done)
                )
            if self._totals.get(source) != total:
                self._totals[source] = total
                self._write_totals()

    def _read_totals(self) -> dict[str, int]:
        try:
            stored = json.loads(self._file.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        given = stored.items() if isinstance(stored, dict) else ()
        return {source: total for source, total in given if isinstance(total, int) and total > 0}

    def _write_totals(self) -> None:
        try:
            with replacing(self._file) as part:
                part.write_text(json.dumps(self._totals, indent=1), "utf-8")
        except OSError:
            logger.exception("The sizes of downloads could not be written down")
