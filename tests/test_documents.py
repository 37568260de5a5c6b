"""The documents lead where they say, and their Chinese editions give the same commands and settings as the English ones."""

import re
from pathlib import Path

import pytest

from backend.settings import PROJECT_FOLDER

EDITIONS = [("README.md", "docs/zh/README.md"), ("docs/guide.md", "docs/zh/guide.md")]
DOCUMENTS = sorted([*PROJECT_FOLDER.glob("*.md"), *PROJECT_FOLDER.glob("docs/**/*.md"), *PROJECT_FOLDER.glob("models/*/*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(PROJECT_FOLDER)))
def test_links_to_files_lead_somewhere(document):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text("utf-8"))
    assert [link for link in links if "://" not in link and not (document.parent / link).exists()] == []


@pytest.mark.parametrize(("english", "chinese"), EDITIONS)
def test_both_editions_give_the_same_commands(english, chinese):
    assert commands(PROJECT_FOLDER / english) == commands(PROJECT_FOLDER / chinese) != []


@pytest.mark.parametrize(("english", "chinese"), EDITIONS)
def test_both_editions_have_the_same_headings_pictures_rows_and_list_items(english, chinese):
    for mark in (r"^#+ ", r"^!\[", r"^\|", r"^(?:- |\d\. )", r"^\*\*"):
        counts = [len(re.findall(mark, (PROJECT_FOLDER / name).read_text("utf-8"), re.MULTILINE)) for name in (english, chinese)]
        assert counts[0] == counts[1], mark


def commands(document: Path) -> list[str]:
    """The lines of all code blocks, without their comments."""
    blocks = re.findall(r"^```\w+\n(.*?)^```", document.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [re.sub(r" +# .*", "", line) for block in blocks for line in block.splitlines()]


def test_the_map_has_a_line_for_every_file_of_the_rooms():
    """Paths within `backend/` and `wan_ui/`, each in its own table, and none that is not there; `{a,b}/c.py` are two."""
    document = (PROJECT_FOLDER / "docs/architecture.md").read_text("utf-8")
    for package in ("backend", "wan_ui"):
        table = document.partition(f"| {package}/ | |")[2].partition("\n\n")[0]
        rows = re.findall(r"^\| `([^`{]*)(?:\{(.+)\})?([^`{]*)` \| .+ \|$", table, re.MULTILINE)
        listed = [f"{before}{name}{after}" for before, names, after in rows for name in names.split(",")]
        folder = PROJECT_FOLDER / package
        there = [str(path.relative_to(folder)) for path in folder.rglob("*.py") if path.name != "__init__.py"]
        assert sorted(listed) == sorted(there)
