"""What all tests count on."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.many_devices import QUICK

os.environ.setdefault("XLA_FLAGS", QUICK)  # jax reads it when the first test needs a device
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads it: tiny networks run up to 25 times faster so (measured)

LONGEST_FIRST = (
    "tests/wan_ui/test_browser.py",
    "tests/backend/families/wan/test_vae_tpu.py",
    "tests/parity/test_hunyuan.py",
    "tests/backend/commands/test_stages.py",
    "tests/wan_ui/queue/test_queue_in_browser.py",
    "tests/backend/workers/test_supervisor.py",
    "tests/kernels/test_pallas_tpu.py",
    "tests/parity/test_families.py",
    "tests/backend/commands/test_precompile.py",
    "tests/test_app.py",
    "tests/test_faults.py",
    "tests/wan_ui/routes/test_videos.py",
    "tests/backend/families/hunyuan/test_vae_tpu.py",
    "tests/parity/test_parity.py",
    "tests/backend/runtime/test_mesh.py",
    "tests/wan_ui/form/test_settings_in_browser.py",
    "tests/backend/checkpoints/test_hub.py",
    "tests/wan_ui/compare/test_compare_in_browser.py",
    "tests/test_second_family.py",
    "tests/wan_ui/library/test_library_in_browser.py",
    "tests/backend/tpu/test_step_compiles.py",
    "tests/kernels/test_tpu_schedule.py",
    "tests/wan_ui/system/test_system_in_browser.py",
    "tests/wan_ui/desk/test_access_in_browser.py",
)
"""Files that take more than half a minute, longest first, so that pytest-xdist's workers end at the same time."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only benchmarks are asked for, the many files that have none are not imported."""
    if collection_path.suffix == ".py" and config.getoption("markexpr").startswith("bench"):
        return "mark.bench" not in collection_path.read_text("utf-8") or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


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
