"""Check the output of a start, and that the installed command equals app.py."""

import subprocess
import sys
import types

import pytest

import app
from backend import startup
from backend.settings import PROJECT_FOLDER

SLOW = "the first start takes about a minute"


@pytest.fixture(params=[True, False], ids=["first start", "later start"])
def is_first(request, monkeypatch, tmp_path) -> bool:
    """Return whether the bytecode of Gradio is missing, as at a first start."""
    cached = tmp_path / "gradio.pyc"
    if not request.param:
        cached.touch()
    monkeypatch.setattr(startup.importlib.util, "find_spec", lambda name: types.SimpleNamespace(cached=str(cached)))
    return request.param


@pytest.mark.parametrize("words", [[], ["serve"], ["--port", "7861"], ["serve", "--share"]])
def test_a_first_start_is_announced_before_its_imports(words, is_first, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "backend.cli.command_line", None)  # its import fails
    with pytest.raises(ImportError):
        app.main(words)
    said = capsys.readouterr()
    assert said.err.startswith(f"Starting Wan TPU Studio {startup.project_version()}: {SLOW}") is is_first
    assert said.err.count("\n") == is_first and not said.out


@pytest.mark.parametrize("words", [["presets", "list"], ["generate", "--json"], ["--help"], ["--version"]])
def test_other_commands_announce_nothing(words):
    assert not startup.is_serving(words)


def test_every_start_names_the_version(is_first, capsys):
    for wanted in (True, False):
        startup.announce_start("The studio", is_first=wanted)
    said = capsys.readouterr()
    assert said.err.startswith(f"Starting The studio {startup.project_version()}") and said.err.count("\n") == 1
    assert (SLOW in said.err) is is_first


def test_the_installed_command_does_what_app_does_from_any_folder(tmp_path):
    script = "import sys; from wan_tpu_studio import main; sys.argv = ['wan-studio', *sys.argv[1:]]; sys.exit(main())"

    def run(*words: str) -> subprocess.CompletedProcess:
        environment = {"PYTHONPATH": str(PROJECT_FOLDER), "PATH": "/usr/bin:/bin"}
        return subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)

    installed, plain = (run(*start, "presets", "list") for start in (("-c", script), (str(PROJECT_FOLDER / "app.py"),)))
    assert installed.stdout == plain.stdout != "" and installed.returncode == plain.returncode == 0, installed.stderr
    assert run("-c", script, "--version").stdout == f"wan-tpu-studio {startup.project_version()}\n"
    refused = run("-c", script, "presets", "show", "no-such-preset")
    assert refused.returncode == 2 and "no-such-preset" in refused.stderr
