"""Tests of the dependencies: pyproject.toml, the files generated from it, installed packages, and imports of the code."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from backend.settings import PROJECT_FOLDER
from deploy.requirements import LOCK, generate_files
from tests.test_layers import LAYERS, MODULES, imports, top

PYPROJECT = (PROJECT_FOLDER / "pyproject.toml").read_text("utf-8")
PROJECT = tomllib.loads(PYPROJECT)["project"]
OPTIONAL = {"ray", "spandrel"}  # modules of requirements-cluster.txt and requirements-upscalers.txt


def declared(*extras: str) -> list[Requirement]:
    """Return the requirements in pyproject.toml, with the requirements of the given extras."""
    optional = [text for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    found = [Requirement(text) for text in (*PROJECT["dependencies"], *optional)]
    return [one for one in found if one.name != PROJECT["name"]]


def needed(requirements: list[Requirement]) -> dict[str, Version]:
    """Return the installed packages that the requirements need, with their versions."""
    found: dict[str, Version] = {}
    left, seen = [(one, "") for one in requirements], set()
    while left:
        one, extra = left.pop()
        name = canonicalize_name(one.name)
        if (one.marker and not one.marker.evaluate({"extra": extra})) or (name, extras := tuple(sorted(one.extras))) in seen:
            continue
        seen.add((name, extras))
        try:
            package = distribution(one.name)
        except PackageNotFoundError:
            continue  # only builds of PyTorch for GPUs need it
        found[name] = Version(package.version)
        left += [(Requirement(text), extra) for text in package.requires or [] for extra in ("", *extras)]
    return found


def locked() -> dict[str, set[str]]:
    """Return the locked versions for this Python, by name."""
    found: dict[str, set[str]] = {}
    lines = (PROJECT_FOLDER / LOCK).read_text("utf-8").splitlines()
    for one in (Requirement(line) for line in lines if line and not line.startswith("#")):
        if one.marker is None or one.marker.evaluate():
            [pin] = one.specifier
            assert pin.operator == "==", one
            found.setdefault(canonicalize_name(one.name), set()).add(pin.version)
    return found


def test_every_installed_package_that_is_needed_has_the_locked_version():
    packages, lock = needed(declared("tpu", "cluster", "test")), locked()
    assert {"starlette", "uvicorn", "h11", "python-multipart", "gradio-client"} <= packages.keys()
    wrong = {name: str(version) for name, version in packages.items() if lock.get(name) != {version.public}}
    assert wrong == {}


def test_every_declared_version_is_locked():
    lock = locked()
    wrong = {
        str(one) for one in declared("tpu", "cluster", "test") if not one.specifier.contains(*lock[canonicalize_name(one.name)])
    }
    assert wrong == set()


@pytest.mark.parametrize(("name", "text"), generate_files(PYPROJECT).items())
def test_requirements_files_are_generated_from_pyproject(name, text):
    assert (PROJECT_FOLDER / name).read_text("utf-8") == text, "run `python deploy/requirements.py`"


def test_every_module_that_the_product_imports_is_a_declared_dependency():
    owners = packages_distributions()
    names = {canonicalize_name(one.name) for one in declared()}
    importers = {top(imported): name for name in MODULES for imported in imports(name)}
    others = importers.keys() - sys.stdlib_module_names - {*LAYERS, *OPTIONAL}
    undeclared = {name for name in others if not names & {*map(canonicalize_name, owners.get(name, []))}}
    assert {name: importers[name] for name in undeclared} == {}
    assert {"uvicorn", "starlette", "gradio_client", "PIL"} <= others


def test_jax_and_libtpu_are_pinned_apart():
    """jax's extra `tpu` would select another libtpu than the one that compiled our programs."""
    every = [*declared("tpu", "cluster", "test"), *map(Requirement, tomllib.loads(PYPROJECT)["dependency-groups"]["upscalers"])]
    assert [str(one) for one in every if one.name in ("jax", "jaxlib") and one.extras] == []
    pins = {one.name: [pin.version for pin in one.specifier if pin.operator == "=="] for one in every}
    for name in ("jax", "jaxlib", "libtpu"):
        assert {*pins[name]} == locked()[name] and len(pins[name]) == 1
    for path in (*PROJECT_FOLDER.glob("requirements*"), *PROJECT_FOLDER.glob("deploy/*"), *PROJECT_FOLDER.glob("docs/**/*.md")):
        if path.is_file():
            assert not re.search(r"jax(lib)?\[\w*tpu", path.read_text("utf-8")), path


def test_no_requirement_brings_torchvision():
    """diffusers and transformers import torchvision, which raises if it was built for another build of torch."""
    assert "torchvision" not in needed(declared("tpu", "cluster", "test")) and "torchvision" not in locked()


PLAIN = """
import sys
for name in sys.argv[1:]:
    sys.modules[name] = None
from diffusers import WanPipeline
from transformers import UMT5EncoderModel
"""


def test_diffusers_can_be_imported_with_the_required_packages_alone():
    required = needed(declared())
    others = [
        module for module, owners in packages_distributions().items() if not required.keys() & {*map(canonicalize_name, owners)}
    ]
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PLAIN, *others], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-1000:]


def test_the_lock_is_followed_and_names_no_place():
    assert f"-c {LOCK}" in (PROJECT_FOLDER / "requirements.txt").read_text("utf-8").splitlines()
    lock = (PROJECT_FOLDER / LOCK).read_text("utf-8")
    assert "://" not in lock and not re.search(r"^-", lock, re.MULTILINE)
    assert re.search(r"^uv=uv==[\d.]+$", (PROJECT_FOLDER / "deploy/start.sh").read_text("utf-8"), re.MULTILINE)
