"""Check the imports of heavy processes: unneeded libraries are not imported, and Python seldom collects garbage."""

import subprocess
import sys

import pytest

from backend.imports import UNUSED
from backend.models import FAMILIES
from backend.settings import PROJECT_FOLDER

SCRIPT = """
import sys
from backend.models import FAMILIES
from backend.imports import hide_unused_libraries
hide_unused_libraries()
for family in FAMILIES.values():
    print(family.model().__name__)
print(sorted({name.partition(".")[0] for name, module in sys.modules.items() if module is not None}))
"""


def test_the_bodies_of_all_families_need_no_library_that_is_hidden():
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=PROJECT_FOLDER, capture_output=True, text=True, timeout=120)
    *bodies, modules = done.stdout.splitlines()
    assert done.returncode == 0 and len(bodies) == len(FAMILIES), done.stderr
    assert not {f"'{name}'" for name in UNUSED} & set(modules.strip("[]").split(", ")) and "'diffusers'" in modules


@pytest.mark.parametrize(
    "program",
    [
        "from backend.imports import hide_unused_libraries; hide_unused_libraries(); from diffusers import WanPipeline",
        "from backend.models import FAMILIES; [family.model() for family in FAMILIES.values()]",
    ],
    ids=["workers", "families"],
)
def test_a_torchvision_of_another_build_is_not_imported(program, tmp_path):
    """The fake torchvision raises an error at its import, as if it were built for another torch. transformers would find and
    import it.
    """
    for folder in ("torchvision", "torchvision-0.1.dist-info"):
        (tmp_path / folder).mkdir()
    (tmp_path / "torchvision/__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    (tmp_path / "torchvision-0.1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.1\n")
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{tmp_path}:{PROJECT_FOLDER}"}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, cwd=PROJECT_FOLDER, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
