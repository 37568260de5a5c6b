"""Check user presets and comparisons: one set per owner, sensible names, kept over a restart."""

from contextlib import closing

import pytest

from backend.engine.store import Store
from backend.errors import RequestError


@pytest.fixture
def user_presets(tmp_path):
    with closing(Store(tmp_path / "jobs.sqlite3")) as store:
        yield store.user_presets


def test_presets_belong_to_their_owner_and_last(user_presets, tmp_path):
    user_presets.save_presets("ann", {"  My  look ": {"steps": 8}})
    assert user_presets.presets("bob") == {}
    with closing(Store(tmp_path / "jobs.sqlite3")) as again:
        assert again.user_presets.presets("ann") == {"My look": {"steps": 8}}


def test_renaming_never_takes_anothers_name(user_presets):
    user_presets.save_presets("ann", {"a": {"steps": 1}})
    user_presets.save_presets("ann", {"b": {"steps": 2}})
    with pytest.raises(RequestError, match="is already used"):
        user_presets.rename_preset("ann", "a", "b")
    user_presets.rename_preset("ann", "a", "圆")
    assert user_presets.presets("ann") == {"b": {"steps": 2}, "圆": {"steps": 1}}
    user_presets.delete_preset("bob", "b")
    user_presets.delete_preset("ann", "圆")
    assert list(user_presets.presets("ann")) == ["b"]


@pytest.mark.parametrize("name", ["", "  ", None, "x" * 61, "a\x00b"])
def test_a_name_must_be_one(user_presets, name):
    with pytest.raises(RequestError, match="must have 1 to 60 visible characters"):
        user_presets.save_presets("ann", {name: {}})


def test_comparisons_are_found_by_their_id(user_presets):
    made = user_presets.compare("ann", ("j1", "j2"))
    assert user_presets.comparison(made.id) == made and user_presets.comparisons() == [made]
    assert user_presets.comparison("nothing") is None and user_presets.comparison(None) is None


def test_several_presets_are_kept_all_or_none(user_presets):
    with pytest.raises(RequestError, match="must have 1 to 60 visible characters"):
        user_presets.save_presets("ann", {"good": {}, "x" * 61: {}, "other": {}})
    with pytest.raises(RequestError, match="may have 200"):
        user_presets.save_presets("ann", {f"preset {number}": {} for number in range(201)})
    with pytest.raises(RequestError, match="characters of settings"):
        user_presets.save_presets("ann", {"good": {}, "long": {"negative_prompt": "x" * 20_000}})
    assert user_presets.presets("ann") == {}
    user_presets.save_presets("ann", {f"preset {number}": {} for number in range(200)})
    user_presets.save_presets("ann", {"preset 7": {"steps": 3}})
    assert len(user_presets.presets("ann")) == 200 and user_presets.presets("ann")["preset 7"] == {"steps": 3}
