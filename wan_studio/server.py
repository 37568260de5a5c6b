"""A studio server that this process starts, and stops at its exit."""

import atexit
import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from wan_studio.errors import StudioError

STOP_SECONDS = 60.0  # the longest wait for the worker, which stops at the end of a step
_LOOK_SECONDS = 0.1
_LOG_CHARACTERS = 2000  # the end of the log in errors
_PACKAGE = "wan_tpu_studio"  # the folder that contains the project in an installed wheel


class LocalServer:
    """A server process on a free port of this machine. Visitors without the key need the user "studio" and a random password.

    The process has its own session, so that interrupting a notebook's cell does not end it. It also ends if this process is
    killed. `url` and `key` are the address and the operator's key. `password` is the visitors' password. `share_url` is the
    public link of `--share`, None without one. `log` is the file of its output, which contains the key and is readable by this
    account only.
    """

    def __init__(
        self,
        options: Sequence[str],
        python: str | None,
        start_seconds: float,
        on_wait: Callable[[str], object] | None = None,
    ) -> None:
        """Start the server and wait until it answers. `on_wait` receives its last line of output. Raises: StudioError."""
        port = _find_free_port()
        self.url, self.log = f"http://127.0.0.1:{port}/", Path(tempfile.mkdtemp(prefix="wan-studio-")) / "server.log"
        reading, self._pipe = os.pipe()
        words = [python or sys.executable, "-m", "backend.child_process", str(reading), "app", "serve", "--port", str(port)]
        self.password = secrets.token_urlsafe(32)
        self.share_url: str | None = None
        environment = {**os.environ, "STUDIO_AUTH": f"studio:{self.password}", "STUDIO_LOG": str(self.log)}
        with open(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
            try:
                self._process = subprocess.Popen(
                    [*words, *options],
                    cwd=find_project(),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(reading,),
                    start_new_session=True,
                )
            except BaseException:
                os.close(self._pipe)
                raise
            finally:
                os.close(reading)
        atexit.register(self.stop)
        try:
            self.key = self._wait_for_key(time.monotonic() + start_seconds, on_wait)
        except BaseException:
            self.stop()
            raise

    @property
    def is_running(self) -> bool:
        """True until the server ends."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Stop the server. A running video is resumed by the next server with the same data folder."""
        atexit.unregister(self.stop)
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        with contextlib.suppress(OSError):  # stopped before
            os.close(self._pipe)

    def _wait_for_key(self, until: float, on_wait: Callable[[str], object] | None) -> str:
        """Return the operator's key, and set `share_url`. The server prints both as soon as it answers requests."""
        link = re.compile(rf"{re.escape(self.url)}\?operator=(\S+)")
        while True:
            text = self.log.read_text("utf-8", errors="replace")
            if found := link.search(text):
                shared = re.search(r" runs at (https://\S+)", text)
                self.share_url = shared[1] if shared else None
                return found[1]
            if on_wait is not None:
                on_wait(text.rstrip().rpartition("\n")[2])
            if self._process.poll() is not None or time.monotonic() > until:
                raise StudioError(f"The server did not start. The end of its log {self.log}:\n{text[-_LOG_CHARACTERS:]}")
            time.sleep(_LOOK_SECONDS)


def find_project() -> Path:
    """Return the folder that contains `app.py`: the repository's folder, or a folder of an installed wheel."""
    folder = Path(__file__).resolve().parent.parent
    project = next((one for one in (folder, folder / _PACKAGE) if (one / "app.py").is_file()), None)
    if project is None:
        raise StudioError(f"{folder} has no app.py: install the whole studio, or use Studio.connect(url, key)")
    return project


def _find_free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
