"""What all tests count on."""

import os
import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def interrupts_arrive() -> None:
    """A shell that starts the tests in the background makes them, and all that they start, deaf to Ctrl+C, which some press."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def programs_are_compiled_once(tmp_path_factory) -> Iterator[None]:
    """All tests of a run, and the processes that they start, share one folder of compiled programs: the demo model's are needed by
    dozens of them. Under pytest-xdist the base folder's parent is the one that all its workers share."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUDIO_CACHE_DIR", str(shared / "programs"))
        yield
