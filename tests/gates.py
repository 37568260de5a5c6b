"""Gates at which a stand-in pipeline waits until the test that closed the gate opens it.

A gate belongs to one prompt (while a model is loaded: to one model) and one place, so that tests of several visitors can share a
server. It is a folder below the one that `STUDIO_TEST_GATES` names, which worker processes and their hosts inherit. The places:

- `load N`: before part N of the model is read, N from 0
- `compile`: between two programs; only a video with this gate compiles
- `step N`: before step N, N from 1
- `draft N`: before step N of an instant draft, N from 1
- `frame N`: before frame N is upscaled, N from 1
- `would fit`: while the pipeline looks for memory suggestions

A pipeline that waits reacts to a cancel, except in `load`, and to the end of its worker. From the third step or frame on, the
engine expects progress every 30 s. Close a gate at the second step or frame if it stays closed for longer.
"""

import contextlib
import hashlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER_VARIABLE = "STUDIO_TEST_GATES"
LIMIT_SECONDS = 120.0
_PLACES = ("load", "compile", "step", "draft", "frame", "would fit")
_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Gate:
    """A gate that a test has closed."""

    name: str
    place: str
    folder: Path

    def wait(self, arrivals: int = 1) -> None:
        """Wait until `arrivals` pipelines have arrived since the gate was closed."""
        until = time.monotonic() + LIMIT_SECONDS
        while len(list(self.folder.glob("arrival-*"))) < arrivals:
            assert time.monotonic() < until, f"nothing arrived at {self.place!r} of {self.name!r}"
            time.sleep(_POLL_SECONDS)

    def open(self) -> None:
        """Let all pipelines pass, from now on."""
        (self.folder / "closed").unlink(missing_ok=True)


@contextlib.contextmanager
def gates() -> Iterator[Callable[[str, str], Gate]]:
    """Yield a function that closes the gate of a prompt at a place. Open all gates at the end."""
    closed = []

    def close(name: str, place: str = "step 2") -> Gate:
        assert place.rstrip("0123456789 ") in _PLACES, place
        folder = _folder(name, place)
        for file in [*folder.glob("*")]:  # files of an earlier test
            file.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "closed").touch()
        closed.append(Gate(name, place, folder))
        return closed[-1]

    try:
        yield close
    finally:
        for gate in closed:
            gate.open()


def has_gate(name: str, place: str) -> bool:
    """Return whether a test has closed this gate, even if it is open again."""
    return _folder(name, place).exists()


def pass_gate(name: str, place: str, is_cancelled: Callable[[], object] = lambda: False) -> None:
    """Wait while the gate is closed, or until `is_cancelled()` is true, which is asked all the time and may raise instead.

    The processes of several hosts ask equally often, because they decide together whether the job is cancelled: the first one
    notes in which round it found the gate open. Raises: TimeoutError if no test opens the gate.
    """
    folder = _folder(name, place)
    if not folder.exists():
        return
    (folder / f"arrival-{os.getpid()}-{time.monotonic_ns()}").touch()
    until = time.monotonic() + LIMIT_SECONDS
    for round_number in itertools.count():
        if _is_first_host():
            if not _is_serving():
                return
            if not (folder / "closed").exists():
                (folder / f"open-{round_number}").touch()
        if is_cancelled() or (folder / f"open-{round_number}").exists():
            return
        if time.monotonic() > until:
            raise TimeoutError(f"no test has opened the gate at {place!r} of {name!r}")
        time.sleep(_POLL_SECONDS)


def _folder(name: str, place: str) -> Path:
    key = hashlib.sha256(f"{place}\n{name}".encode()).hexdigest()[:24]
    return Path(os.environ.get(FOLDER_VARIABLE, "/nonexistent"), key)


def _is_first_host() -> bool:
    return "--host-index" not in sys.argv or sys.argv[sys.argv.index("--host-index") + 1] == "0"


def _is_serving() -> bool:
    """Return whether this process's worker continues.

    Its heartbeat thread ends when the worker must stop or its engine has ended.
    """
    return any(thread.name == "heartbeat" for thread in threading.enumerate())
