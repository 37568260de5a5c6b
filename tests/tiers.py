"""Tiers of tests. `python -m tests.tiers quick` or `default` prints the tests of a tier, one a line, for `pytest @FILE`.

`tests/tiers.toml` is the table. Test files that import a recently changed file, directly or through others, are found in the
imports of the project's Python files and JavaScript modules. The table's `[served]` names the tests of files that no test
imports.
"""

import argparse
import ast
import collections
import fnmatch
import functools
import json
import posixpath
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

PROJECT = Path(__file__).parent.parent
TABLE = PROJECT / "tests" / "tiers.toml"
DURATIONS = PROJECT / "tests" / "durations.json"
UNRECORDED_SECONDS = 0.5
"""Assumed duration of files that tests/durations.json does not name. It names files that take a second or more."""
FOLDERS = ("backend", "benchmarks", "kernels", "presets", "tests", "training", "wan_studio", "wan_ui")
SCRIPT_IMPORT = re.compile(r"(?:from|import) '(\.[^']+)'")


@functools.cache
def table() -> dict:
    """The contents of tests/tiers.toml."""
    return tomllib.loads(TABLE.read_text("utf-8"))


@functools.cache
def durations() -> dict[str, float]:
    """Recorded seconds by test file."""
    return json.loads(DURATIONS.read_text("utf-8"))


@functools.cache
def test_files() -> tuple[str, ...]:
    """All test files, relative to the project."""
    return tuple(sorted(path.relative_to(PROJECT).as_posix() for path in (PROJECT / "tests").rglob("test_*.py")))


def seconds(file: str) -> float:
    """Recorded seconds of a test file."""
    return durations().get(file, UNRECORDED_SECONDS)


def quick_files() -> list[str]:
    """Test files of the quick tier."""
    return [file for file in test_files() if seconds(file) <= table()["quick_seconds"]]


def promised_tests() -> list[str]:
    """Return the tests of the promises, without repetitions."""
    return list(dict.fromkeys(test for tests in table()["promises"].values() for test in tests))


def recent_files(changed: Iterable[str], covered: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the nearest test files that import or serve a changed file and fit into the time, and the other such test files.

    Args:
        changed: files, relative to the project.
        covered: test files that run anyway.
    """
    distances = import_distances(changed)
    found = sorted(
        (file for file in distances.keys() & {*test_files()} - {*covered}), key=lambda file: (distances[file], seconds(file))
    )
    left, chosen = float(table()["recent_seconds"]), []
    for file in found:
        if seconds(file) <= left:
            chosen.append(file)
            left -= seconds(file)
    return chosen, [file for file in found if file not in chosen]


def changed_files(commits: int) -> list[str]:
    """Return the files that the last `commits` commits or the working tree changed. Empty without Git's history."""
    run = functools.partial(subprocess.run, cwd=PROJECT, capture_output=True, text=True)
    hashes = run(["git", "rev-list", f"--max-count={commits + 1}", "HEAD"]).stdout.split()
    if not hashes:
        return []
    compared = run(["git", "diff", "--name-only", hashes[-1]]).stdout.split()
    added = run(["git", "ls-files", "--others", "--exclude-standard"]).stdout.split()
    return [file for file in dict.fromkeys([*compared, *added]) if (PROJECT / file).is_file()]


def import_distances(changed: Iterable[str]) -> dict[str, int]:
    """Return the number of imports between each file and the nearest changed file: 0 for a changed file.

    Files that import no changed file, directly or through others, are left out.
    """
    importers = collections.defaultdict(set)
    for file, imported in imports().items():
        for one in imported:
            importers[one].add(file)
    distances, waiting = {}, collections.deque((file, 0) for file in changed)
    while waiting:
        file, distance = waiting.popleft()
        if file not in distances:
            distances[file] = distance
            waiting.extend((importer, distance + 1) for importer in importers[file] | serving_tests(file))
    return distances


def serving_tests(file: str) -> set[str]:
    """Return the test files that the table names for a file, although they do not import the file."""
    folder = posixpath.dirname(file)
    patterns = [
        pattern.format(folder=folder)
        for served, tests in table()["served"].items()
        if fnmatch.fnmatchcase(file, served)
        for pattern in tests
    ]
    return {test for test in test_files() for pattern in patterns if fnmatch.fnmatchcase(test, pattern)}


@functools.cache
def imports() -> dict[str, frozenset[str]]:
    """Return the imports of each Python file and JavaScript module of the project, also in functions."""
    paths = [path for folder in FOLDERS for path in (PROJECT / folder).rglob("*") if path.suffix in (".py", ".js")]
    files = {path.relative_to(PROJECT).as_posix() for path in paths} | {"app.py"}
    return {file: frozenset((_imported(file) if file.endswith(".py") else _imported_scripts(file)) & files) for file in files}


def _imported_scripts(file: str) -> set[str]:
    """Modules that a JavaScript module imports."""
    found = SCRIPT_IMPORT.findall((PROJECT / file).read_text("utf-8"))
    return {posixpath.normpath(posixpath.join(posixpath.dirname(file), path)) for path in found}


def _imported(file: str) -> set[str]:
    """Candidates for the files that `file` imports. A `conftest.py` counts as imported by the tests below its folder."""
    names = set(_imported_names(ast.parse((PROJECT / file).read_bytes())))
    paths = {name.replace(".", "/") for name in names}
    found = {candidate for path in paths for candidate in (f"{path}.py", f"{path}/__init__.py")}
    if file.startswith("tests/"):
        found |= {f"{parent.as_posix()}/conftest.py" for parent in Path(file).parents if parent != Path(".")}
    return found - {file}


def _imported_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith(("tests.", "backend.", "benchmarks."))
        ):
            yield node.value.partition(":")[0]  # a module that a test starts as a process, or patches by its name


def select(tier: str) -> tuple[list[str], list[str]]:
    """Arguments for pytest, and test files that serve recent changes but have no time in this tier."""
    quick = quick_files()
    if tier == "quick":
        return quick, []
    promised = promised_tests()
    whole = {*quick, *(test for test in promised if "::" not in test)}
    recent, left_out = recent_files(changed_files(table()["recent_commits"]), whole)
    whole |= {*recent}
    return [*sorted(whole), *(test for test in promised if test.partition("::")[0] not in whole)], left_out


def main() -> None:
    """Print the tests of a tier. Print on standard error the test files that exceed its time."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("tier", choices=["quick", "default"])
    chosen, left_out = select(parser.parse_args().tier)
    if left_out:
        sys.stderr.write(f"These {len(left_out)} test files serve recent changes and have no time here; --full runs them:\n")
        sys.stderr.write("".join(f"  {file}\n" for file in left_out))
    sys.stdout.write("".join(f"{test}\n" for test in chosen))


if __name__ == "__main__":
    main()
