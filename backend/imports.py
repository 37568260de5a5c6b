"""Which libraries are installed, and what a heavy process does not import: those that diffusers and transformers load where they
are installed, and that nothing here uses. They cost a second (docs/lab/cpu.md)."""

import importlib.metadata
import sys
from types import ModuleType
from typing import cast

TORCHVISION = "torchvision"
"""No requirement brings it. An environment may have one that was built for another kind of torch: it raises where it is imported,
and transformers would import it."""
UNUSED = ("accelerate", "pandas", "peft", "scipy", "sklearn", TORCHVISION)


def hide_unused_libraries() -> None:
    """For this process they are not installed from now on; those that are imported already stay."""
    for name in UNUSED:
        hide(name)


def hide(library: str) -> None:
    """The same of one."""
    cast(dict[str, ModuleType | None], sys.modules).setdefault(library, None)  # Python imports nothing of this name then


def installed_version(library: str, otherwise: str = "none") -> str:
    """The version of a library that is installed, or what stands for one that is not."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return otherwise
