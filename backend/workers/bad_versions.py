"""List the versions of Python, numpy, jax and libtpu that are known to fail together. Imports neither jax nor torch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

RELEASED_WITH = {
    **{"0.7.2": "0.0.23", "0.8.3": "0.0.32", "0.9.2": "0.0.37", "0.10.0": "0.0.40"},
    **{"0.10.2": "0.0.42", "0.11.0": "0.0.44", "0.11.2": "0.0.48", "0.12.0.1": "0.0.50"},
}
"""The libtpu that each jax release requires in its extra `tpu`, oldest first (metadata on PyPI, 2026-11-27)."""

OLDER_VERSIONS = 3
"""Number of libtpu versions before the one in `RELEASED_WITH` that jax still accepts. jax 0.10.2 refuses a libtpu that was built
before 2026-04-01. On that day 0.0.38 was the newest on PyPI, so 0.0.39 is the oldest that jax 0.10.2 accepts. For the other
releases the number is an estimate."""


@dataclass(frozen=True, kw_only=True)
class BadVersions:
    """Versions that fail together. `versions` has, for each package and for "python", the first bad version and the first good
    version after it, "" for no limit. A package that is not installed is not bad. `chip` is the only TPU generation on which
    they fail, such as "v5e", "" for all."""

    versions: Mapping[str, tuple[str, str]]
    reason: str
    chip: str = ""


def _with_old_libtpu(jax: str, next_jax: str) -> BadVersions:
    """Return the libtpu versions that are more than about a month older than this jax. Source: jax 0.10.2,
    jax/_src/pallas/mosaic/lowering.py, which compares the date of libtpu's build with a date in the code."""
    first, second, third = parse_version(RELEASED_WITH[jax])
    least = f"{first}.{second}.{third - OLDER_VERSIONS}"
    reason = f"libtpu is more than about a month older than jax, which then refuses our kernels; take {least} or newer"
    return BadVersions(versions={"jax": (jax, next_jax), "libtpu": ("", least)}, reason=reason)


def parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version such as "0.0.42.1", without labels such as ".dev1" and "+cpu"."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


BAD_VERSIONS = (
    *map(_with_old_libtpu, RELEASED_WITH, [*RELEASED_WITH, ""][1:]),
    BadVersions(  # source: AlphaFold 3's report about v5e
        versions={"jax": ("0.10.2", "0.10.3"), "libtpu": ("0.0.42.1", "0.0.43.2")},
        chip="v5e",
        reason="with this pair, compiling a model for v5e crashed; libtpu 0.0.43.2 did not crash",
    ),
    BadVersions(  # source: libtpu's release notes
        versions={"jax": ("", "0.7.1"), "libtpu": ("0.0.21.1", "")}, reason="this libtpu needs jax 0.7.1 or newer"
    ),
    BadVersions(  # source: libtpu's release notes
        versions={"python": ("", "3.12"), "libtpu": ("0.0.43", "0.0.45")}, reason="libtpu 0.0.43 and 0.0.44 need Python 3.12"
    ),
    BadVersions(  # source of this row and of the rows below: jax's metadata on PyPI
        versions={"python": ("", "3.12"), "jax": ("0.11", "")}, reason="jax 0.11 and newer need Python 3.12"
    ),
    BadVersions(versions={"numpy": ("", "2.0"), "jax": ("0.7.2", "0.11")}, reason="this jax needs numpy 2.0 or newer"),
    BadVersions(versions={"numpy": ("", "2.1"), "jax": ("0.11", "0.12")}, reason="this jax needs numpy 2.1 or newer"),
    BadVersions(versions={"numpy": ("", "2.2"), "jax": ("0.12", "")}, reason="jax 0.12 and newer need numpy 2.2"),
)


def find_bad_versions(installed: Mapping[str, str], chip: str) -> BadVersions | None:
    """Return the first row of `BAD_VERSIONS` that the installed versions and the TPU generation match."""

    def is_bad(name: str, first: str, next_good: str) -> bool:
        version = parse_version(installed.get(name, ""))
        return bool(version) and parse_version(first) <= version and (not next_good or version < parse_version(next_good))

    for row in BAD_VERSIONS:
        if row.chip in ("", chip) and all(is_bad(name, *limits) for name, limits in row.versions.items()):
            return row
    return None
