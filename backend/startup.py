"""Read the project's version, and announce a start before the slow imports. Imports only fast modules."""

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
    return _project()["name"]


def project_version() -> str:
    return _project()["version"]


def is_serving(words: Sequence[str]) -> bool:
    """Return whether this command line starts the studio. No command means `serve`."""
    return not words or words[0] == "serve" or (words[0].startswith("-") and words[0] not in ("-h", "--help", "--version"))


def announce_start(title: str, *, is_first: bool) -> None:
    """Write a line with the studio's title to standard error, if `is_first` is right.

    At the first start after an installation, Python must compile the imports. Callers call this function with both values.
    """
    spec = importlib.util.find_spec("gradio")  # the library that takes longest to import
    is_first_start = spec is not None and spec.cached is not None and not Path(spec.cached).is_file()
    if is_first_start is is_first:
        wait = ": the first start takes about a minute, because Python compiles what it imports" if is_first else "…"
        sys.stderr.write(f"Starting {title} {project_version()}{wait}\n")
        sys.stderr.flush()
