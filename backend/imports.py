"""Find installed libraries, and hide libraries that diffusers and transformers would import without need.

Importing the hidden libraries takes a second (docs/lab/cpu.md).
"""

import importlib.metadata
import sys
from types import ModuleType
from typing import cast

TORCHVISION = "torchvision"
"""A library that this project does not need. transformers imports it, which fails if it was built for another kind of torch."""
UNUSED = ("accelerate", "pandas", "peft", "scipy", "sklearn", TORCHVISION)


def hide_unused_libraries() -> None:
    """Make the libraries in `UNUSED` look not installed in this process. Libraries that are already imported remain."""
    for name in UNUSED:
        hide_library(name)


def hide_library(library: str) -> None:
    """Make a library look not installed in this process, unless it is already imported."""
    cast(dict[str, ModuleType | None], sys.modules).setdefault(library, None)  # Python refuses to import a module with this entry


def installed_version(library: str, otherwise: str = "none") -> str:
    """Return the version of an installed library, `otherwise` if it is not installed."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return otherwise
