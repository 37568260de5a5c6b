"""What a start of the studio says before its imports, and the project's version. Imports nothing that takes time."""

import functools
import importlib.util
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PROJECT_FILE = Path(__file__).resolve().parent.parent / "pyproject.toml"


@functools.cache
def _project() -> dict[str, Any]:
    return tomllib.loads(_PROJECT_FILE.read_text("utf-8"))["project"]


def project_name() -> str:
    """The distribution's name, as pip knows it."""
    return _project()["name"]


def project_version() -> str:
    """The version in pyproject.toml, the one place that states it."""
    return _project()["version"]


def is_serving(words: Sequence[str]) -> bool:
    """Whether this command line starts the studio: no command means `serve`."""
    return not words or words[0] == "serve" or (words[0].startswith("-") and words[0] not in ("-h", "--help", "--version"))


def announce_start(title: str, *, is_first: bool) -> None:
    """Write one line with the studio's title to standard error, if this is the first start or a later one, as `is_first` says."""
    if _is_first_start() is is_first:
        wait = ": the first start takes about a minute, because Python compiles what it imports" if is_first else "…"
        sys.stderr.write(f"Starting {title} {project_version()}{wait}\n")
        sys.stderr.flush()


def _is_first_start(library: str = "gradio") -> bool:
    """Whether Python has not yet kept the bytecode of the library that takes longest."""
    found = importlib.util.find_spec(library)
    return found is not None and found.cached is not None and not Path(found.cached).is_file()
