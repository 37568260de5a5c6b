"""What heavy processes import: libraries that are installed for others stay out, and Python does not look for garbage all the time."""

import subprocess
import sys

from backend.families import FAMILIES
from backend.imports import UNUSED
from backend.settings import PROJECT_FOLDER

SCRIPT = """
import sys
from backend.families import FAMILIES
from backend.imports import hide_unused_libraries
hide_unused_libraries()
for family in FAMILIES:
    print(family.model().__name__)
print(sorted({name.partition(".")[0] for name, module in sys.modules.items() if module is not None}))
"""


def test_the_bodies_of_all_families_need_no_library_that_is_hidden():
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=PROJECT_FOLDER, capture_output=True, text=True, timeout=120)
    *bodies, modules = done.stdout.splitlines()
    assert done.returncode == 0 and len(bodies) == len(FAMILIES), done.stderr
    assert not {f"'{name}'" for name in UNUSED} & set(modules.strip("[]").split(", ")) and "'diffusers'" in modules
