"""The files of presets repeat no inherited value, and resolve to the values of an earlier version."""

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from backend.settings import PROJECT_FOLDER
from presets import list_presets, load_preset
from presets.loader import BASES, PRESET_FOLDER, find_files, resolve_values

FILES = sorted([*PRESET_FOLDER.glob("*.toml"), *PRESET_FOLDER.glob(f"{BASES}/*.toml")])
MOST_LINES = 23.5
"""Largest average of lines for each preset, with its share of the base files. Blank lines do not count."""
EARLIER = json.loads((PROJECT_FOLDER / "tests/fixtures/preset_values_4bce9ae7.json").read_text("utf-8"))
"""The values of all presets at commit 4bce9ae7. `fields` has the distinct values of each field, and the index of each preset's
value in the order of `names`. `reworded` has the texts that commit 96e1ea41 rewrote in plain English."""
CHANGED: dict[tuple[str, str], str] = {}
"""The reason of each later change of a value, by preset and field. Add an entry when you change a value on purpose."""


def test_bases_are_not_presets_and_have_other_names():
    names, bases = [preset.name for preset in list_presets()], [path.stem for path in FILES if path.parent.name == BASES]
    assert len(bases) > 10 and not {*names} & {*bases}
    inherited = {file.stem for name in names for file in find_files(name)[1:]}
    assert [base for base in bases if base not in inherited] == []


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_a_file_does_not_repeat_an_inherited_value(file):
    own = tomllib.loads(file.read_text("utf-8"))
    inherited = resolve_values(own["base"]) if "base" in own else {}
    assert list(_repeated_keys(own, inherited)) == [], "delete these lines: the base has the same values"


def _repeated_keys(own: dict[str, Any], inherited: dict[str, Any]) -> Iterator[str]:
    for key, value in own.items():
        if isinstance(value, dict) and key in inherited:
            yield from (f"{key}.{name}" for name in _repeated_keys(value, inherited[key]))
        elif key in inherited and _as_json(value) == _as_json(inherited[key]):
            yield key


def test_repeated_keys_are_found():
    inherited = {"steps": 4, "zh": {"title": "一", "examples": ["二"]}, "live": True, "guidance": [1.0]}
    own = {"steps": 4, "zh": {"title": "三", "examples": ["二"]}, "live": False, "guidance": [1.0], "width": 4}
    assert list(_repeated_keys(own, inherited)) == ["steps", "zh.examples", "guidance"]


def test_the_files_stay_short():
    lines = [line for file in FILES for line in file.read_text("utf-8").splitlines() if line.strip()]
    assert len(lines) <= MOST_LINES * len(list_presets()), "move values that several presets share to a file in presets/bases"


@pytest.mark.parametrize("name", EARLIER["names"])
def test_every_value_is_that_of_commit_4bce9ae7(name):
    place = EARLIER["names"].index(name)
    expected = {field: rows["values"][rows["presets"][place]] for field, rows in EARLIER["fields"].items()}
    reworded = EARLIER["reworded"].get(name, {})
    assert {*reworded} <= {"title", "description", "licence"}
    assert all(expected[field] != text for field, text in reworded.items())
    expected |= reworded
    preset = load_preset(name).model_dump(mode="json")
    chinese = {f"translations.zh.{key}": value for key, value in preset["translations"]["zh"].items()}
    differing = {field for field, value in expected.items() if _as_json((preset | chinese)[field]) != _as_json(value)}
    assert differing == {field for changed, field in CHANGED if changed == name}, "name changes on purpose in CHANGED"


def _as_json(value: object) -> str:
    """Return a text in which 1, 1.0 and true differ, and in which the order of keys does not count."""
    return json.dumps(value, sort_keys=True)


def test_the_earlier_values_are_complete():
    assert len(EARLIER["names"]) == 68 and len(EARLIER["fields"]) == 72
    assert all(len(rows["presets"]) == 68 for rows in EARLIER["fields"].values())
