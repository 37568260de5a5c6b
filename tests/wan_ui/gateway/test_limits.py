"""Tests that the document states the same limits for visitors as the code."""

from backend.settings import PROJECT_FOLDER
from wan_ui.gateway import limits
from wan_ui.gateway.limits import UNLIMITED, Limit

LIMITS = [value for value in vars(limits).values() if isinstance(value, Limit)]  # in the order of their definitions


def rows() -> list[str]:
    document = (PROJECT_FOLDER / "docs/security.md").read_text("utf-8")
    return document.partition("| at most |")[2].partition("\n\n")[0].splitlines()[2:]


def row(limit: Limit) -> str:
    numbers = (limit.of_visitor, limit.of_address, limit.without_key, limit.in_all)
    return f"| {limit.what} | {' | '.join('' if number == UNLIMITED else f'{number:,}' for number in numbers)} |"


def test_the_document_has_the_same_numbers():
    assert rows() == [row(limit) for limit in LIMITS]


def test_every_limit_is_in_the_table():
    assert len(LIMITS) > 10 and {limit.what for limit in LIMITS} == {line.split(" | ")[0].removeprefix("| ") for line in rows()}
