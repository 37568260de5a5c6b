"""Fixtures and hooks of all tests."""

import collections
import contextlib
import functools
import gc
import importlib.util
import json
import os
import py_compile
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import gates, kept, lazy_imports
from tests.many_devices import QUICK, kept_programs

gc.disable()  # until everything is imported
os.environ.setdefault("XLA_FLAGS", QUICK)  # jax reads it when the first test needs a device
os.environ.setdefault("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "none")  # for GPUs; its path would change each cache key
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # a tenth less of tracing and lowering (measured)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for torch: one thread runs tiny networks up to 25 times faster (measured)

lazy_imports.install()

DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds of each file of tests, by its path. `STUDIO_KEEP_DURATIONS=1 bash tests/run` measures them again."""

LOADED_ONCE = ("tiny_ltx", "tiny")
"""Fixtures of tests/parity that load models and compile programs for all files that use them: one process has those files."""

DEMO_SERVERS = re.compile(r'_serving\("demo"|\bevery_studio\b|Studio\.local\(')
"""What starts a server with the demo model. Servers that start at the same time would compile the same programs."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore files without benchmarks if only benchmarks are selected, so that pytest does not import them."""
    if collection_path.suffix == ".py" and config.getoption("markexpr").startswith("bench"):
        return "mark.bench" not in collection_path.read_text("utf-8") or None
    return None


@functools.cache
def group_of(file: str) -> str:
    """Return what this test file shares with other files, else the file: a fixture, or the demo model's programs."""
    text = Path(__file__).parent.parent.joinpath(file).read_text("utf-8")
    if not file.startswith("tests/parity/"):
        return "servers of the demo model" if DEMO_SERVERS.search(text) else file
    uses = (name for name in LOADED_ONCE if re.search(rf"def test_\w+\([^)]*\b{name}\b", text) and f"def {name}(" not in text)
    return next(uses, file)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the slowest groups of files first, so that pytest-xdist's workers end at about the same time."""
    files = {item.nodeid.partition("::")[0] for item in items}
    seconds = json.loads(DURATIONS.read_text())
    totals = collections.Counter()
    for file in files:
        totals[group_of(file)] += seconds.get(file, 0)
    items.sort(key=lambda item: -totals[group_of(item.nodeid.partition("::")[0])])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute tests as `--dist loadfile` does, with each group as one file."""
    from xdist.scheduler import LoadFileScheduling

    class LoadGroups(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(super()._split_scope(nodeid))

    return LoadGroups(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    """Exclude the imported modules from garbage collection, and set the variables that keep compiled programs for later runs.

    JAX reads these variables when the first test that needs it imports it.
    """
    gc.freeze()
    gc.enable()
    os.environ.update(kept_programs())


def pytest_terminal_summary(terminalreporter) -> None:
    if os.environ.get("STUDIO_KEEP_DURATIONS"):
        seconds = collections.Counter()
        for report in (report for reports in terminalreporter.stats.values() for report in reports):
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
        longest = {name: round(total) for name, total in seconds.most_common() if total >= 1}
        DURATIONS.write_text(json.dumps(longest, indent=1) + "\n")


@pytest.fixture(scope="session", autouse=True)
def interrupts_arrive() -> None:
    """Restore the handler of SIGINT. A shell that starts the tests in the background makes all processes ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def programs_are_compiled_once(tmp_path_factory) -> Iterator[None]:
    """Let all tests and their processes share a folder of compiled programs, which outlives the run (`tests/kept.py`).

    The studio's other cache files are deleted with the run's temporary folder. All workers of pytest-xdist share the parent of
    their base folders.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with contextlib.suppress(FileExistsError):
        (shared / "programs").mkdir()
    with contextlib.suppress(FileExistsError):
        (shared / "programs" / "jax").symlink_to(kept.programs())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUDIO_CACHE_DIR", str(shared / "programs"))
        yield


@pytest.fixture(scope="session", autouse=True)
def first_start_is_over() -> None:
    """Compile Gradio, by which the studio recognizes its first start.

    A first start prints one more line, so that results would depend on the order of the tests.
    """
    if (library := importlib.util.find_spec("gradio")) and library.origin:
        with contextlib.suppress(OSError):  # another user's environment
            py_compile.compile(library.origin)


@pytest.fixture(scope="session", autouse=True)
def gates_are_shared(tmp_path_factory) -> Iterator[None]:
    """Set the folder of gates for the processes that the tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(gates.FOLDER_VARIABLE, str(tmp_path_factory.mktemp("gates")))
        yield


@pytest.fixture
def close_gate() -> Iterator[Callable[..., gates.Gate]]:
    """Return `close_gate(prompt, place)`, which makes the stand-in pipeline wait at a place (`tests/gates.py`) until the test ends."""
    with gates.gates() as close:
        yield close
