"""A running studio and a real Chromium for the browser tests.

Most browser tests run against the pretend pipeline, which is fast and waits at gates. Tests of the whole way to a video use
`every_studio` and run twice. The first run is against the pretend pipeline. The second run, marked `demo_model`, is against
`python app.py serve` with the embedded demo model, and is skipped if that model is missing. With `model_does_not_matter` the
second run is marked `slow`. `-m "browser and not demo_model"` needs no model.
"""

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from backend.settings import PROJECT_FOLDER
from presets import load_preset
from tests.many_devices import without_quick

CHROMIUM = shutil.which("chromium-headless-shell") or "/usr/bin/chromium"
"""The shell does without a browser's windows: a page costs a fifth less (measured)."""

CHROMIUM_ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",  # a fake microphone that beeps, with permission to use it
)  # fmt: skip
DESKTOP = (1440, 900, False)
START_SECONDS, PATIENCE_MS = 180.0, 120_000  # enough for a busy machine
READY_SECONDS = 240.0  # the demo model compiles before its first video; benchmarks measure times


@dataclass(frozen=True, kw_only=True)
class Studio:
    """A running studio."""

    kind: str
    url: str
    first_page_seconds: float
    patience_ms: int


@pytest.fixture(scope="session")
def studio(tmp_path_factory) -> Iterator[Studio]:
    """Start a studio with the pretend pipeline. Files of tests share it if other visitors' jobs do not disturb them."""
    with _serving("fake", tmp_path_factory.mktemp("studio")) as server:
        yield _studio("fake", server)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    """Return the data folder of the studio that one file of tests uses."""
    return tmp_path_factory.mktemp("studio")


@pytest.fixture(scope="module")
def own_studio(data_dir) -> Iterator[Studio]:
    """Start a studio with the pretend pipeline for one file of tests only."""
    with _serving("fake", data_dir) as server:
        yield _studio("fake", server)


@pytest.fixture(scope="module")
def url(studio) -> str:
    return studio.url


@pytest.fixture(scope="module", params=["fake", pytest.param("demo", marks=pytest.mark.demo_model)])
def every_studio(request, tmp_path_factory) -> Iterator[Studio]:
    """Start the studio in a separate process, as users do, for one file of tests."""
    if request.param == "demo" and not (Path(load_preset("wan-tiny").model_source) / "model_index.json").is_file():
        pytest.skip("the demo model has not been trained yet")
    with _serving(request.param, tmp_path_factory.mktemp("studio")) as server:
        yield _studio(request.param, server)


model_does_not_matter = pytest.mark.parametrize(
    "every_studio", ["fake", pytest.param("demo", marks=[pytest.mark.demo_model, pytest.mark.slow])], indirect=True
)
"""For tests with `every_studio` of what the studio itself does with a video: the demo model's turn is among the slow tests."""


@pytest.fixture
def start_again(studio, tmp_path) -> Callable[[], float]:
    """Return a function that starts a second studio of the same kind and returns the seconds until its first page."""

    def start() -> float:
        with _serving(studio.kind, tmp_path) as server:
            return server.seconds

    return start


def _studio(kind: str, server: "_serving") -> Studio:
    patience_ms = PATIENCE_MS if kind == "fake" else round(READY_SECONDS * 1000)
    return Studio(kind=kind, url=server.url, first_page_seconds=server.seconds, patience_ms=patience_ms)


class _serving:
    """Context manager that starts a server process, waits for its first page, and ends the process."""

    def __init__(
        self, kind: str, data_dir: Path, port: int | None = None, more: Sequence[str] = (), folder: Path = PROJECT_FOLDER
    ):
        program = ["-m", "tests.wan_ui.serve_fake"] if kind == "fake" else ["app.py", "serve"]
        self.port = port = port or _free_port()
        self.url, self.seconds = f"http://127.0.0.1:{port}/", 0.0
        self._command = [sys.executable, *program, "--port", str(port), "--data-dir", str(data_dir), *more]
        self._log, self._folder = data_dir / "server.log", folder

    def __enter__(self) -> Self:
        started = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, cwd=self._folder, stdout=log, stderr=log, env=without_quick())
        while self.seconds < START_SECONDS and self._process.poll() is None:
            self.seconds = time.monotonic() - started
            if _answers(self.url):
                return self
            time.sleep(0.05)
        self.__exit__()
        raise RuntimeError(f"the studio did not start: {self._log.read_text(errors='replace')[-2000:]}")

    def __exit__(self, *_) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def chromium() -> Iterator:
    """One browser for a file of tests; each visitor is a context of it.

    Not for the whole session: while Playwright is open its event loop runs in this thread, and others cannot.
    """
    if not shutil.which(CHROMIUM):
        pytest.skip(f"there is no {CHROMIUM}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(CHROMIUM_ARGUMENTS))
        browser.on("context", lambda context: context.set_default_timeout(PATIENCE_MS))
        yield browser
        browser.close()


@dataclass(frozen=True)
class _Visitors:
    """Opens the studio as new visitors of one browser.

    Browser contexts are reused, so that Chromium does not fetch and compile the page's files again for each visitor.
    """

    chromium: Any
    studio: Studio
    free: dict[tuple[int, int, bool], list[Any]] = field(default_factory=dict)

    def open(self, kind: tuple[int, int, bool], troubles: list[str]) -> Any:
        """Return a page that is ready to use.

        `kind` is (width, height, is_dark). Errors of the page are appended to `troubles`.
        """
        free = self.free.setdefault(kind, [])
        page = (free.pop() if free else self._context(*kind)).new_page()
        page.set_default_timeout(self.studio.patience_ms)
        _forget(page, self.studio.url)
        _watch(page, self.studio.url, troubles)
        page.goto(self.studio.url)
        page.wait_for_function("window.studio?.isOpen && document.querySelector('.status')?.dataset.state === 'ready'")
        return page

    def close(self, kind: tuple[int, int, bool], context: Any) -> None:
        """Close all pages of a visitor."""
        for page in context.pages:
            page.close()
        self.free[kind].append(context)

    def leave(self, shared: "_Shared") -> None:
        """Close the page that tests share, if it is open, because an open page uses the processor."""
        if shared.page is not None:
            self.close(DESKTOP, shared.page.context)
            shared.page = None

    def _context(self, width: int, height: int, dark: bool) -> Any:
        return self.chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            is_mobile=width < 760,
            has_touch=width < 760,
            accept_downloads=True,
        )


def _forget(page, url: str) -> None:
    """Make the page's visitor a new visitor: delete cookies and stored data."""
    page.context.clear_cookies()
    session = page.context.new_cdp_session(page)
    session.send("Storage.clearDataForOrigin", {"origin": url.rstrip("/"), "storageTypes": "all"})
    session.detach()


@pytest.fixture(scope="module")
def visitors(chromium, studio) -> _Visitors:
    return _Visitors(chromium, studio)


@dataclass
class _Shared:
    """The shared page of the fixture `page`, its errors, and the number of failed tests when it was opened."""

    page: Any = None
    troubles: list[str] = field(default_factory=list)
    failed: int = 0


@pytest.fixture(scope="module")
def shared(visitors) -> _Shared:
    return _Shared()


@pytest.fixture
def page(visitors, shared, request) -> Iterator[Any]:
    """Return a desktop page that tests share, for tests that do not depend on the state of the page.

    After a failed test the next test gets a new page. The page must stay on this server, without an error in its console.
    """
    if shared.page is None or request.session.testsfailed > shared.failed:
        visitors.leave(shared)
        shared.page, shared.failed = visitors.open(DESKTOP, shared.troubles), request.session.testsfailed
    yield shared.page
    troubles, shared.troubles[:] = list(shared.troubles), []
    assert troubles == []


@pytest.fixture
def visit(visitors, shared) -> Iterator[Callable]:
    """Return `visit(width=..., height=..., dark=...)`, which opens the studio as a new visitor and returns a page that is ready.

    At the end every page must have stayed on this server and without an error in its console.
    """
    visitors.leave(shared)
    opened, troubles = [], []

    def open_page(width: int = 1440, height: int = 900, dark: bool = False):
        opened.append(((width, height, dark), visitors.open((width, height, dark), troubles)))
        return opened[-1][1]

    yield open_page
    found = list(troubles)  # copied first: requests that closing a page aborts are not errors
    for kind, page in opened:
        visitors.close(kind, page.context)
    assert found == []


def _watch(page, url: str, troubles: list[str]) -> None:
    page.on("console", lambda message: troubles.append(f"console: {message.text}") if message.type == "error" else None)
    page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
    page.on(
        "request",
        lambda request: (
            troubles.append(f"left the server: {request.url}") if not request.url.startswith((url, "data:", "blob:")) else None
        ),
    )


@pytest.fixture
def picture(tmp_path) -> Path:
    """A wide picture, red on the left and blue on the right."""
    from PIL import Image

    image = Image.new("RGB", (400, 100), (220, 40, 40))
    image.paste((60, 105, 245), (200, 0, 400, 100))
    image.save(tmp_path / "picture.png")
    return tmp_path / "picture.png"
