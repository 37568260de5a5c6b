"""requirements.lock against what is installed: each package that the requirements need, direct or not, in the locked version."""

import re
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from backend.settings import PROJECT_FOLDER


def named(file: str) -> list[Requirement]:
    """What a requirements file asks for, with the files that it includes."""
    found = []
    for line in (PROJECT_FOLDER / file).read_text("utf-8").splitlines():
        if line.startswith("-r "):
            found += named(line.removeprefix("-r "))
        elif line and not line.startswith(("#", "-c")):
            found.append(Requirement(line))
    return found


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
    for one in named("requirements.lock"):
        if one.marker is None or one.marker.evaluate():
            [pin] = one.specifier
            assert pin.operator == "==", one
            found.setdefault(canonicalize_name(one.name), set()).add(pin.version)
    return found


def test_every_installed_package_that_is_needed_has_the_locked_version():
    packages, lock = needed(named("requirements-test.txt")), locked()
    assert {"starlette", "uvicorn", "h11", "python-multipart", "gradio-client"} <= packages.keys()
    wrong = {name: str(version) for name, version in packages.items() if lock.get(name) != {version.public}}
    assert wrong == {}


def test_the_lock_is_followed_and_names_no_place():
    assert "-c requirements.lock" in (PROJECT_FOLDER / "requirements.txt").read_text("utf-8").splitlines()
    assert "://" not in (PROJECT_FOLDER / "requirements.lock").read_text("utf-8")
    assert re.search(r"^uv=uv==[\d.]+$", (PROJECT_FOLDER / "deploy/start.sh").read_text("utf-8"), re.MULTILINE)
