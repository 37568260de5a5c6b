"""The table of what visitors may ask for: the document has the same numbers."""

from backend.settings import PROJECT_FOLDER
from wan_ui.door import limits
from wan_ui.door.limits import LIMITS, Limit


def test_the_document_has_the_same_numbers():
    document = (PROJECT_FOLDER / "docs/security.md").read_text("utf-8")
    table = document.partition("| at most |")[2].partition("\n\n")[0]
    assert table.splitlines()[2:] == [row(limit) for limit in LIMITS]


def row(limit: Limit) -> str:
    numbers = (limit.of_visitor, limit.of_address, limit.without_key, limit.in_all)
    return f"| {limit.what} | {' | '.join('' if number is None else f'{number:,}' for number in numbers)} |"


def test_every_limit_is_in_the_table():
    assert set(LIMITS) == {value for value in vars(limits).values() if isinstance(value, Limit)}
