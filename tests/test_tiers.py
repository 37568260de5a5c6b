"""The table of tiers names tests that exist, and recent changes find the tests that import them."""

import ast
import subprocess
import sys

import pytest

from tests import tiers


def test_every_promised_test_exists():
    for test in tiers.promised_tests():
        file, _, name = test.partition("::")
        assert file in tiers.test_files(), test
        functions = {
            node.name for node in ast.walk(ast.parse((tiers.PROJECT / file).read_bytes())) if isinstance(node, ast.FunctionDef)
        }
        assert not name or name.partition("[")[0] in functions, test


def test_durations_name_existing_files():
    assert set(tiers.durations()) <= set(tiers.test_files())


def test_the_default_tier_has_the_quick_one_and_every_promise():
    chosen, _ = tiers.select("default")
    files = {test.partition("::")[0] for test in chosen}
    assert {*tiers.quick_files()} <= {*chosen}
    assert {test.partition("::")[0] for test in tiers.promised_tests()} <= files
    assert len(chosen) == len({*chosen})


@pytest.mark.parametrize(
    ("changed", "test", "distance"),
    [
        ("kernels/attention/pallas_tpu.py", "tests/kernels/test_attention.py", 2),  # through kernels/attention/api.py
        ("backend/contract/geometry.py", "tests/backend/contract/test_geometry.py", 1),
        ("tests/kernels/test_attention.py", "tests/kernels/test_attention.py", 0),
        (
            "tests/fake_pipeline.py",
            "tests/backend/engine/test_engine.py",
            2,
        ),  # through a conftest.py, which names the module for a worker process
        ("tests/wan_ui/conftest.py", "tests/wan_ui/live/test_live_in_browser.py", 1),
    ],
)
def test_a_change_reaches_the_tests_that_import_it(changed, test, distance):
    assert tiers.import_distances([changed])[test] == distance


def test_a_change_reaches_no_test_that_does_not_import_it():
    assert "tests/kernels/test_attention.py" not in tiers.import_distances(["wan_ui/page.py"])


def test_recent_files_keep_to_their_time_and_the_others_are_named(monkeypatch):
    monkeypatch.setattr(tiers, "table", lambda: {"recent_seconds": 100})
    chosen, left_out = tiers.recent_files(["backend/errors.py"], covered=["tests/backend/test_errors.py"])
    assert 90 < sum(map(tiers.seconds, chosen)) <= 100
    assert left_out and not {*chosen} & {*left_out} and "tests/backend/test_errors.py" not in chosen


def test_collection_imports_no_large_library():
    program = "import pytest, sys; code = pytest.main(['--collect-only', '-qq', '-m', '', 'tests']); " + (
        "print([name for name in ('torch', 'diffusers', 'gradio', 'jax', 'transformers') if name in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tiers.PROJECT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:]
    assert done.stdout.splitlines()[-1] == "[]"
