"""The dependencies in pyproject.toml, the files that are generated from them, what is installed, and what the code imports."""

import re
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
OPTIONAL = {"ray"}  # modules of the extra `cluster`


def declared(*extras: str) -> list[Requirement]:
    """The requirements in pyproject.toml, with those of these extras."""
    optional = [text for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    found = [Requirement(text) for text in (*PROJECT["dependencies"], *optional)]
    return [one for one in found if one.name != PROJECT["name"]]


def needed(requirements: list[Requirement]) -> dict[str, Version]:
    """The installed packages that these need, with their versions."""
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
            continue  # of PyTorch's builds for GPUs
        found[name] = Version(package.version)
        left += [(Requirement(text), extra) for text in package.requires or [] for extra in ("", *extras)]
    return found


def locked() -> dict[str, set[str]]:
    """The versions in the lock that this Python takes, by name."""
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


def test_the_lock_is_followed_and_names_no_place():
    assert f"-c {LOCK}" in (PROJECT_FOLDER / "requirements.txt").read_text("utf-8").splitlines()
    lock = (PROJECT_FOLDER / LOCK).read_text("utf-8")
    assert "://" not in lock and not re.search(r"^-", lock, re.MULTILINE)
    assert re.search(r"^uv=uv==[\d.]+$", (PROJECT_FOLDER / "deploy/start.sh").read_text("utf-8"), re.MULTILINE)
