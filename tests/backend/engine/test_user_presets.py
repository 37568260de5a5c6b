"""Presets of one's own and comparisons: per owner, named sensibly, kept over a restart."""

import pytest

from backend.engine.user_presets import Shelf
from backend.errors import RequestError


@pytest.fixture
def shelf(tmp_path):
    shelf = Shelf(tmp_path / "jobs.sqlite3")
    yield shelf
    shelf.close()


def test_presets_belong_to_their_owner_and_last(shelf, tmp_path):
    shelf.save_preset("ann", "  My  look ", {"steps": 8})
    assert shelf.presets("bob") == {}
    again = Shelf(tmp_path / "jobs.sqlite3")
    assert again.presets("ann") == {"My look": {"steps": 8}}
    again.close()


def test_renaming_never_takes_anothers_name(shelf):
    shelf.save_preset("ann", "a", {"steps": 1})
    shelf.save_preset("ann", "b", {"steps": 2})
    with pytest.raises(RequestError, match="is taken already"):
        shelf.rename_preset("ann", "a", "b")
    shelf.rename_preset("ann", "a", "圆")
    assert shelf.presets("ann") == {"b": {"steps": 2}, "圆": {"steps": 1}}
    shelf.delete_preset("bob", "b")
    shelf.delete_preset("ann", "圆")
    assert list(shelf.presets("ann")) == ["b"]


@pytest.mark.parametrize("name", ["", "  ", None, "x" * 61, "a\x00b"])
def test_a_name_must_be_one(shelf, name):
    with pytest.raises(RequestError, match="must have 1 to 60 visible characters"):
        shelf.save_preset("ann", name, {})


def test_comparisons_are_found_by_their_id(shelf):
    made = shelf.compare("ann", ("j1", "j2"))
    assert shelf.comparison(made.id) == made and shelf.comparisons() == [made]
    assert shelf.comparison("nothing") is None


def test_several_presets_are_kept_all_or_none(shelf):
    with pytest.raises(RequestError, match="must have 1 to 60 visible characters"):
        shelf.save_presets("ann", {"good": {}, "x" * 61: {}, "other": {}})
    with pytest.raises(RequestError, match="there may be 200"):
        shelf.save_presets("ann", {f"preset {number}": {} for number in range(201)})
    with pytest.raises(RequestError, match="characters of settings"):
        shelf.save_presets("ann", {"good": {}, "long": {"negative_prompt": "x" * 20_000}})
    assert shelf.presets("ann") == {}
    shelf.save_presets("ann", {f"preset {number}": {} for number in range(200)})
    shelf.save_presets("ann", {"preset 7": {"steps": 3}})
    assert len(shelf.presets("ann")) == 200 and shelf.presets("ann")["preset 7"] == {"steps": 3}
