"""Tests that links in the documents work, and that Chinese editions have the same commands and settings as the English editions."""

import re
from pathlib import Path

import pytest

from backend.cli import reference
from backend.schemas.settings import SETTINGS
from backend.settings import PROJECT_FOLDER
from tests.wan_ui import screenshots

EDITIONS = [("README.md", "docs/zh/README.md")]
EDITIONS += [(f"docs/{name}.md", f"docs/zh/{name}.md") for name in ("tutorial", "reference", "operating")]
DOCUMENTS = sorted([*PROJECT_FOLDER.glob("*.md"), *PROJECT_FOLDER.glob("docs/**/*.md"), *PROJECT_FOLDER.glob("models/*/*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(PROJECT_FOLDER)))
def test_links_to_files_lead_somewhere(document):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text("utf-8"))
    assert [link for link in links if "://" not in link and not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(PROJECT_FOLDER)))
def test_links_to_headings_lead_somewhere(document):
    links = re.findall(r"\]\(([^):]*)#([^)]+)\)", document.read_text("utf-8"))
    files = [(document.parent / file if file else document, heading) for file, heading in links]
    assert [f"{file}#{heading}" for file, heading in files if heading not in headings(file)] == []


def headings(document: Path) -> set[str]:
    """Return the anchors of the document's headings, as GitHub generates them."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", document.read_text("utf-8"), flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(("english", "chinese"), EDITIONS)
def test_both_editions_give_the_same_commands(english, chinese):
    assert commands(PROJECT_FOLDER / english) == commands(PROJECT_FOLDER / chinese)


@pytest.mark.parametrize(("english", "chinese"), EDITIONS)
def test_both_editions_have_the_same_headings_pictures_rows_and_list_items(english, chinese):
    for mark in (r"^#+ ", r"^!\[", r"^\|", r"^(?:- |\d\. )", r"^\*\*"):
        counts = [len(re.findall(mark, written(PROJECT_FOLDER / name), re.MULTILINE)) for name in (english, chinese)]
        assert counts[0] == counts[1], mark


def test_every_picture_is_taken_by_the_command_and_shown_in_a_document():
    files = {path.name for path in (PROJECT_FOLDER / "docs/screenshots").iterdir()}
    texts = "".join(path.read_text("utf-8") for path in DOCUMENTS)
    assert files == {f"{name}.png" for name in screenshots.PICTURES} == {*re.findall(r"screenshots/([\w-]+\.png)", texts)}


def written(document: Path) -> str:
    """Return the document's text, without the parts that are generated in the English edition only."""
    return re.sub(r"<!-- generated: .*?<!-- end -->", "", document.read_text("utf-8"), flags=re.DOTALL)


def test_the_reference_is_generated_from_the_settings_and_the_command_line():
    assert reference.PAGE.read_text("utf-8") == reference.page(), f"run `python -m {reference.__name__}`"


def test_the_reference_names_every_setting_that_programs_may_send_and_every_option():
    page = reference.PAGE.read_text("utf-8")
    assert [name for name, one in SETTINGS.items() if (one.stage or one.for_programs) and f"`{name}`" not in page] == []


def commands(document: Path) -> list[str]:
    """Return the lines of all code blocks, without comments."""
    blocks = re.findall(r"^```\w+\n(.*?)^```", document.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [re.sub(r" +# .*", "", line) for block in blocks for line in block.splitlines()]


def test_the_map_has_every_room_and_no_other():
    """The plan in docs/architecture.md lists the folders of `backend/` and `wan_ui/`, and the files on their ground floor."""
    plan = (PROJECT_FOLDER / "docs/architecture.md").read_text("utf-8").partition("```\n")[2].partition("```")[0]
    _, studio, backend = re.split(r"^(?=wan_ui/|backend/)", plan.partition("kernels/")[0], flags=re.MULTILINE)
    ground = re.search(r"\(ground\)(.*)", backend)[1]
    rooms = [line.split()[0] for line in backend.removeprefix("backend/").splitlines() if line and "(ground)" not in line]
    assert sorted(rooms) == folders("backend") and set(re.findall(r"\w+", ground)) == files("backend")
    assert set(re.findall(r"\w+", studio.removeprefix("wan_ui/"))) == {*folders("wan_ui"), *files("wan_ui")} - NOT_ROOMS


NOT_ROOMS = {"assets", "malloc_arenas"}  # in wan_ui, but no packages of the page


def folders(package: str) -> list[str]:
    return sorted(path.name for path in (PROJECT_FOLDER / package).iterdir() if path.is_dir() and path.name != "__pycache__")


def files(package: str) -> set[str]:
    return {path.stem for path in (PROJECT_FOLDER / package).glob("*.py")} - {"__init__"}
