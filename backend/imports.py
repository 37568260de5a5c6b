"""What a heavy process does not import: libraries that diffusers and transformers load where they are installed, and that nothing
here uses. They cost a second (docs/lab/cpu.md)."""

import sys

UNUSED = ("accelerate", "pandas", "peft", "scipy", "sklearn")


def hide_unused_libraries() -> None:
    """For this process they are not installed from now on; those that are imported already stay."""
    for name in UNUSED:
        sys.modules.setdefault(name, None)
