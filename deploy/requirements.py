"""Generate the requirements files and requirements.lock from pyproject.toml.

    python deploy/requirements.py            after you changed a dependency; the lock keeps its other versions
    python deploy/requirements.py --upgrade  also take the newest versions of the packages that pyproject.toml does not name

The lock needs the command `uv` (pip install uv).
"""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
LOCK = "requirements.lock"
_HEAD = "# Generated from pyproject.toml by `python deploy/requirements.py`; do not edit.\n"
_EXTRA = {
    "": f"# Packages that the studio needs to run. The CPU build of torch is enough.\n-c {LOCK}\n",
    "tpu": "# Packages that the studio needs on a TPU VM.\n",
    "cluster": "# Package that `app.py serve --cluster` needs as well, on every machine of the cluster: see docs/scale.md.\n",
    "test": "# Packages that the tests need.\n",
    "upscalers": "# Upscalers other than Real-ESRGAN: pip install --no-deps -r requirements-upscalers.txt\n",
}
_BASES = {"tpu": [""]}  # files that an extra's file includes although the extra does not name them


def requirements_file(extra: str) -> str:
    """Return the name of an extra's requirements file; "" is the studio itself."""
    return f"requirements-{extra}.txt" if extra else "requirements.txt"


def generate_files(pyproject: str) -> dict[str, str]:
    """Return the text of each requirements file by its name."""
    tables = tomllib.loads(pyproject)
    project = tables["project"]
    wanted = {
        "": project["dependencies"],
        **project["optional-dependencies"],
        "upscalers": tables["dependency-groups"]["upscalers"],
    }
    return {requirements_file(extra): _HEAD + _EXTRA[extra] + _lines(project["name"], extra, wanted[extra]) for extra in wanted}


def _lines(project_name: str, extra: str, requirements: list[str]) -> str:
    lines = [f"-r {requirements_file(base)}" for base in _BASES.get(extra, [])]
    for requirement in requirements:
        own_extras = re.fullmatch(rf"{re.escape(project_name)}\[([\w,-]+)\]", requirement)
        lines += [f"-r {requirements_file(name)}" for name in own_extras[1].split(",")] if own_extras else [requirement]
    return "".join(f"{line}\n" for line in lines)


def write_lock(*options: str) -> None:
    """Let uv resolve all extras for every supported Python."""
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("the command uv is needed for requirements.lock: pip install uv")
    oldest = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]["requires-python"]
    words = [uv, "pip", "compile", "--quiet", "--universal", "--python-version", re.search(r"[\d.]+", oldest)[0], "--no-annotate"]
    words += ["--all-extras", "--custom-compile-command", "python deploy/requirements.py"]
    subprocess.run([*words, *options, "pyproject.toml", "--output-file", LOCK], cwd=PROJECT, check=True)


if __name__ == "__main__":
    for name, text in generate_files((PROJECT / "pyproject.toml").read_text("utf-8")).items():
        (PROJECT / name).write_text(text, "utf-8")
    write_lock(*sys.argv[1:])
