"""Tests that the project works with Python 3.11 to 3.13.

Every such interpreter on this machine compiles all files. It also runs the tests of the light packages, in a separate
environment.
"""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backend.settings import PROJECT_FOLDER

VERSIONS = ("3.11", "3.12", "3.13")
ROOMS = ("backend/schemas", "backend/engine", "backend/media", "presets")
READ_ALL = """
import pathlib, sys, warnings
warnings.simplefilter("error")
for path in map(pathlib.Path, sys.argv[1:]):
    compile(path.read_text("utf-8"), str(path), "exec")
print(sys.version_info[:2])
"""


@functools.cache
def interpreter(version: str) -> str | None:
    """Return an interpreter of this version: the tests' interpreter, the newest of pyenv, or the first on the PATH."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [path for path in sorted(pyenv.glob(f"{version}.*/bin/python")) if path.is_file()]
    candidates = [*map(str, found[::-1]), shutil.which(f"python{version}")]
    return next((path for path in candidates if path and _runs(path, version)), None)


def _runs(path: str, version: str) -> bool:
    done = subprocess.run([path, "--version"], capture_output=True, text=True)  # pyenv's shims can point to missing interpreters
    return done.returncode == 0 and f" {version}." in done.stdout


@pytest.fixture(params=VERSIONS)
def python(request) -> str:
    path = interpreter(request.param)
    if path is None:
        pytest.skip(f"Python {request.param} is not on this machine")
    return path


def test_every_file_is_read_without_a_warning(python):
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=PROJECT_FOLDER, capture_output=True, text=True, check=True)
    done = subprocess.run([python, "-c", READ_ALL, *listed.stdout.split()], cwd=PROJECT_FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_the_light_rooms_tests_pass(python, tmp_path):
    if python == sys.executable:
        pytest.skip("these tests run in it anyway")
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
    inside = tmp_path / "venv" / "bin" / "python"
    needed = ["--requirement", PROJECT_FOLDER / "requirements.txt", "pytest"]
    subprocess.run([inside, "-m", "pip", "install", "-q", *needed], check=True, capture_output=True)
    rooms = [f"tests/{room}" for room in ROOMS]
    words = [inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not browser", *rooms]
    done = subprocess.run(words, cwd=PROJECT_FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
