"""Tests that the table of tiers names existing tests, and that changed files select the tests that import or serve them."""

import ast
import fnmatch
import posixpath
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
        ("backend/schemas/geometry.py", "tests/backend/schemas/test_geometry.py", 1),
        ("tests/kernels/test_attention.py", "tests/kernels/test_attention.py", 0),
        (
            "tests/fake_pipeline.py",
            "tests/backend/engine/test_engine.py",
            2,
        ),  # through a conftest.py, which names the module for a worker process
        ("tests/wan_ui/conftest.py", "tests/wan_ui/live/test_live_in_browser.py", 1),
        ("wan_ui/live/live.js", "tests/wan_ui/live/test_live_in_browser.py", 1),
        ("wan_ui/live/live.js", "tests/wan_ui/test_scripts.py", 1),
        ("wan_ui/components/clipboard.js", "tests/wan_ui/components/test_clipboard_in_browser.py", 1),
        ("wan_ui/components/dom.js", "tests/wan_ui/edit/test_edit_in_browser.py", 2),  # through wan_ui/edit/edit.js
        ("wan_ui/form/form.css", "tests/wan_ui/test_styles.py", 1),
        ("wan_ui/form/form.css", "tests/wan_ui/form/test_panel_in_browser.py", 1),
        ("wan_ui/assets/styles/tokens.css", "tests/wan_ui/test_accessibility_in_browser.py", 1),
        ("presets/wan-tiny.toml", "tests/presets/test_loader.py", 1),
        ("presets/bases/wan.toml", "tests/presets/test_loader.py", 1),
        ("presets/bases/wan.toml", "tests/wan_ui/form/test_settings_in_browser.py", 1),
        ("models/wan-tiny/vae/config.json", "tests/backend/pipeline/test_load.py", 1),
        ("backend/prompt_rewriting/instructions/demo.toml", "tests/backend/prompt_rewriting/test_local_model.py", 1),
    ],
)
def test_a_change_reaches_the_tests_that_import_it(changed, test, distance):
    assert tiers.import_distances([changed])[test] == distance


def test_a_change_reaches_no_test_that_does_not_import_it():
    assert "tests/kernels/test_attention.py" not in tiers.import_distances(["wan_ui/studio.py"])


def test_each_row_of_served_files_names_files_and_tests_that_exist():
    listed = subprocess.run(["git", "ls-files"], cwd=tiers.PROJECT, capture_output=True, text=True, check=True).stdout.split()
    for pattern, tests in tiers.table()["served"].items():
        files = [file for file in listed if fnmatch.fnmatchcase(file, pattern)]
        assert files, pattern
        for test in tests:
            wanted = {test.format(folder=posixpath.dirname(file)) for file in files}
            assert any(fnmatch.filter(tiers.test_files(), one) for one in wanted), test


def test_each_script_style_preset_and_model_file_has_tests():
    listed = subprocess.run(["git", "ls-files", "wan_ui", "presets", "models"], cwd=tiers.PROJECT, capture_output=True, text=True)
    files = [file for file in listed.stdout.split() if not file.endswith(".py")]
    assert len(files) > 200 and [file for file in files if not tiers.serving_tests(file)] == []


def test_a_change_of_any_file_is_recent(tmp_path, monkeypatch):
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments], cwd=tmp_path, check=True)

    git("init", "--quiet")
    for name in ("old.css", "committed.js", "edited.toml"):
        (tmp_path / name).write_text("1")
        git("add", name)
        git("commit", "--quiet", "-m", name)
    (tmp_path / "edited.toml").write_text("2")
    (tmp_path / "untracked.css").write_text("1")
    monkeypatch.setattr(tiers, "PROJECT", tmp_path)
    assert tiers.changed_files(1) == ["edited.toml", "untracked.css"]
    assert tiers.changed_files(2) == ["committed.js", "edited.toml", "untracked.css"]


def test_recent_files_keep_to_their_time_and_the_others_are_named(monkeypatch):
    shorter = {**tiers.table(), "recent_seconds": 100}
    monkeypatch.setattr(tiers, "table", lambda: shorter)
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
