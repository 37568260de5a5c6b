"""Downloads of checkpoints and LoRA files for the Models page, one after the other, each in a separate process.

Bytes that have arrived stay, and the next download continues with them (`backend.checkpoints.hub_file`). The sizes from the Hub
are stored in a file, so that the page can show an interrupted download as paused.
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
from backend.files import replace_file
from backend.settings import PROJECT_FOLDER, Settings, worker_environment

Phase = Literal["waiting", "asking", "running", "pausing", "failed"]
"""The state of a download. "asking": the process asks the Hub for sizes, and no bytes have arrived."""
_MODULE = "backend.catalog.download_run"
_END_SECONDS = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Download:
    """A download. `bytes_total` and `bytes_per_second` are 0 while they are not known. `cause` and `fix` describe a failure."""

    source: str
    phase: Phase
    bytes_done: int = 0
    bytes_total: int = 0
    bytes_per_second: float = 0.0
    cause: str = ""
    fix: str = ""

    @property
    def is_active(self) -> bool:
        return self.phase != "failed"


class Downloads:
    """The downloads of one server. `on_change` is called from any thread when a download starts or ends."""

    def __init__(self, settings: Settings, on_change: Callable[[], None]):
        self._settings, self._on_change = settings, on_change
        self._lock = threading.Lock()
        self._shown: dict[str, Download] = {}  # downloads by source, in the order in which they were requested
        self._process: subprocess.Popen | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._file = settings.data_dir / "downloads.json"
        try:
            stored = json.loads(self._file.read_text("utf-8"))
        except (OSError, ValueError):
            stored = {}
        given = stored.items() if isinstance(stored, dict) else ()
        self._totals = {source: total for source, total in given if isinstance(total, int) and total > 0}

    def all(self) -> list[Download]:
        with self._lock:
            return list(self._shown.values())

    def total(self, source: str) -> int:
        """Return the source's size in bytes as the Hub reported it, 0 if the Hub was never asked."""
        with self._lock:
            return self._totals.get(source, 0)

    def begin(self, source: str) -> None:
        """Queue a download. Do nothing if it is queued or runs already."""
        with self._lock:
            download = self._shown.get(source)
            if self._is_closed or (download is not None and download.is_active):
                return
            self._shown.pop(source, None)
            self._shown[source] = Download(source=source, phase="waiting", bytes_total=self._totals.get(source, 0))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_queue, name="downloads", daemon=True)
                self._thread.start()
        self._on_change()

    def pause(self, source: str) -> None:
        """Remove a download from the queue, or end its process. Bytes that have arrived stay. A failed download is removed."""
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
        """Delete the stored size and the failure of a source that was removed."""
        with self._lock:
            self._shown.pop(source, None)
            self._totals.pop(source, None)
            self._write_totals()

    def close(self) -> None:
        """End the running download. Bytes that have arrived stay."""
        with self._lock:
            self._is_closed = True
            self._shown = {source: one for source, one in self._shown.items() if one.phase not in ("waiting", "failed")}
            self._end_process()
            thread = self._thread
        if thread is not None:
            thread.join(_END_SECONDS)

    def _run_queue(self) -> None:
        """Run the queued downloads one after the other."""
        while True:
            with self._lock:
                source = next((source for source, one in self._shown.items() if one.phase == "waiting"), None)
                if source is None or self._is_closed:
                    self._thread = None
                    return
                self._shown[source] = replace(self._shown[source], phase="asking")
            try:
                failed = self._download(source)
            except OSError as error:
                cause = f"The download could not be started ({error})"
                failed = Download(source=source, phase="failed", cause=cause, fix="Try again")
            with self._lock:
                is_paused = self._shown[source].phase == "pausing"
                del self._shown[source]
                if failed is not None and not is_paused:
                    self._shown[source] = failed
            self._on_change()

    def _download(self, source: str) -> Download | None:
        """Download the source in a process. Return a `Download` that describes the failure, None without a failure.

        The process has its own session, so that Ctrl+C reaches only the server. The server ends the process by closing its
        standard input.
        """
        speed, last = Speed(), {}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "start_new_session": True}
        with tempfile.TemporaryFile("w+") as errors:
            with self._lock:
                if self._shown[source].phase == "pausing" or self._is_closed:
                    return None
                environment = worker_environment(self._settings)
                process = start_module(_MODULE, [source], environment, cwd=PROJECT_FOLDER, stderr=errors, **pipes)
                self._process = process
            assert process.stdout is not None, "the process was started with a pipe"
            with process:
                for line in process.stdout:
                    last = json.loads(line)
                    if "bytes" in last:
                        self._update_progress(source, *last["bytes"], speed)
            with self._lock:
                self._process = None
            errors.seek(0)
            error_lines = errors.read().strip().splitlines()
        if last.get("done"):
            return None
        if error_lines:
            logger.warning("The download of %s wrote: %s", source, "\n".join(error_lines[-40:]))
        last_line = error_lines[-1][:300] if error_lines else "no error message"
        cause = last.get("cause") or f"The download ended with {process.returncode}: {last_line}"
        return Download(source=source, phase="failed", cause=cause, fix=last.get("fix") or "Try again: the download continues")

    def _end_process(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def _update_progress(self, source: str, done: int, total: int, speed: Speed) -> None:
        with self._lock:
            shown = self._shown[source]
            if shown.phase in ("asking", "running"):
                rate = speed(done)
                self._shown[source] = replace(shown, phase="running", bytes_done=done, bytes_total=total, bytes_per_second=rate)
            if self._totals.get(source) != total:
                self._totals[source] = total
                self._write_totals()

    def _write_totals(self) -> None:
        try:
            with replace_file(self._file) as part:
                part.write_text(json.dumps(self._totals, indent=1), "utf-8")
        except OSError:
            logger.exception("Could not store the sizes of downloads in %s", self._file)
