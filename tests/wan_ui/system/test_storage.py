"""Tests of storage in the System view: used space, limits, and the messages of cleaning."""

from types import SimpleNamespace

import pytest

from backend.engine.cleaning import CATEGORIES, Limits
from backend.settings import from_environment
from tests.wan_ui.builders import CHINESE
from wan_ui.i18n.english import ENGLISH
from wan_ui.system.html import _storage_rows, freed_space_text


@pytest.mark.parametrize("texts", [ENGLISH, CHINESE])
def test_every_part_has_a_name_in_each_language(texts):
    assert tuple(part for part, _ in texts.system_parts) == CATEGORIES


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(), "none"),
        (Limits(days=30), "30 days"),
        (Limits(gigabytes=0.5), "0.5 GB in total"),
        (Limits(days=30, gigabytes=100), "30 days, 100 GB in total"),
    ],
)
def test_the_rows_show_each_part_the_free_space_and_the_limits(tmp_path, limits, words):
    usage = {part: number * 10**9 for number, part in enumerate(CATEGORIES)}
    cleaner = SimpleNamespace(usage=lambda: usage, limits=limits)
    rows = dict(_storage_rows(SimpleNamespace(cleaner=cleaner, settings=from_environment(tmp_path, {})), ENGLISH))
    assert rows["Intermediate files"] == "1.0 GB" and rows["Compiled programs"] == "6.0 GB" and len(rows) == len(CATEGORIES) + 2
    assert rows["Free disk space"].endswith("B") and rows["Storage limits for videos"] == words


def test_cleaning_says_what_it_freed():
    assert freed_space_text({}, ENGLISH) == "Nothing to remove."
    freed = {"bin": 2 * 10**9, "videos": 5 * 10**8}
    assert freed_space_text(freed, ENGLISH) == "Freed 2.5 GB: Videos 500.0 MB, Deleted videos 2.0 GB."
    assert freed_space_text(freed, CHINESE) == "已释放 2.5 GB：视频 500.0 MB、已删除的视频 2.0 GB。"
