"""Read a table of prompts and settings, typed or from a CSV file. Each row becomes a request: the form's request with the row's
values."""

import csv
import io
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import get_args

from backend.errors import RequestError, shorten
from backend.schemas.request import SEED_LIMIT, GenerationRequest
from backend.schemas.settings import FOR_PROGRAMS, SETTINGS, find_preset

MOST_ROWS = 100
LONGEST_TABLE = 200_000  # characters; a longer table is refused
# Names of columns that are allowed in addition to the settings `FOR_PROGRAMS`. A cell of "size" is WIDTHxHEIGHT, such as 832x480.
_ALSO = ("prompt", "preset", "size")
# If the first line matches this pattern, it names columns, such as "prompt,model". A line such as "Prompt, a cat asks" is a
# prompt.
_COLUMNS = re.compile(r"(?i)prompt([,;\t][a-z0-9_]{1,30})+")
_SIZE = re.compile(r"(\d{1,5})\s*[x×]\s*(\d{1,5})")
_YES, _NO = ("yes", "true", "on", "1"), ("no", "false", "off", "0")


def read_table(text: str) -> list[dict[str, str]]:
    """Return the table's rows. Each row maps column names to cells, without empty cells. If the first line contains setting
    names, "prompt" among them, that line names the columns. Then commas, semicolons or tabs separate the cells of each line. If
    the first line is no such list, each line is a prompt. Raises: RequestError."""
    if len(text) > LONGEST_TABLE:
        raise RequestError(f"the table has {len(text):,} characters and", f"may have {LONGEST_TABLE:,}", "split it in two")
    lines = text.lstrip("\ufeff").strip().splitlines()
    if not lines:
        raise RequestError("the table", "is empty", "write a prompt on each line, or column names on the first line")
    if header := _parse_header(lines[0]):
        names, separator = header
        try:
            read = [*csv.reader(io.StringIO("\n".join(lines[1:])), delimiter=separator, skipinitialspace=True)]
        except csv.Error as error:
            raise RequestError("the table", f"cannot be read: {error}", "save it as CSV again") from None
        cells = [[cell.strip() for cell in row] for row in read]
        for number, row in enumerate(cells, 1):
            if len(row) > len(names) and any(row[len(names) :]):
                rule = f"has {len(row)} cells, but the table has {len(names)} columns"
                raise RequestError(f"row {number}", rule, "put a prompt with commas into quotation marks")
        filled = [{name: cell for name, cell in zip(names, row, strict=False) if cell} for row in cells]
        rows = [row for row in filled if row]
    else:
        rows = [{"prompt": line.strip()} for line in lines if line.strip()]
    if not 0 < len(rows) <= MOST_ROWS:
        raise RequestError(f"the table has {len(rows)} rows and", f"may have 1 to {MOST_ROWS}", "leave some out")
    return rows


def _parse_header(line: str) -> tuple[list[str], str] | None:
    """Return the column names of this line and their separator, or None if the line is a prompt."""
    between = max("\t;,", key=line.count)
    names = [name.strip().strip('"').lower().replace(" ", "_").replace("-", "_") for name in line.split(between)]
    if (
        "prompt" not in names
        or len(names) > 1
        and not any(name in SETTINGS or name in _ALSO for name in names if name != "prompt")
        and not _COLUMNS.fullmatch(line.strip())
    ):
        return None
    known = {*_ALSO, *FOR_PROGRAMS}
    if unknown := next((name for name in names if name not in known), None):
        raise RequestError(f"the column {unknown[:40]!r}", f"must be one of {', '.join(sorted(known))}", "correct its name")
    if len(set(names)) < len(names):
        raise RequestError("a column", "is in the table twice", "leave one out")
    return names, between


def build_requests(rows: Sequence[Mapping[str, str]], base: GenerationRequest, *, is_seed_new: bool) -> list[GenerationRequest]:
    """Return a request for each row. Values that the row lacks come from the preset that the row names, else from `base`. A row
    without a prompt gets the prompt of `base`. A row without a seed gets the seed of `base` or, if `is_seed_new`, a random seed.
    Raises: RequestError with the row's number."""
    requests: list[GenerationRequest] = []
    for number, row in enumerate(rows, 1):
        try:
            values = {name: _parse_value(name, text) for name, text in row.items() if name not in ("preset", "size")}
            if "size" in row:
                match = _SIZE.fullmatch(row["size"])
                if match is None:
                    raise RequestError(f"size={shorten(row['size'], 30)}", "must be WIDTHxHEIGHT", "such as 832x480")
                values |= {"width": int(match[1]), "height": int(match[2])}
            if "prompt" not in values and "preset" in row:
                values["prompt"] = base.prompt
            if "seed" not in values:
                values["seed"] = secrets.randbelow(SEED_LIMIT) if is_seed_new else base.seed
            if "preset" in row:
                requests.append(GenerationRequest.from_preset(find_preset(row["preset"]), **values))
            else:
                requests.append(base.with_changes(**values))
        except RequestError as error:
            raise RequestError(f"row {number}: {error.what}", error.allowed, error.fix) from None
    return requests


def _parse_value(name: str, text: str) -> object:
    """Cells of text settings are returned unchanged, because the request checks text."""
    setting, fix = SETTINGS[name], "correct the cell, or leave it empty"
    kinds = (setting.type, *get_args(setting.type))
    try:
        if int in kinds and bool not in kinds:
            return int(text)
        if setting.is_list:
            return tuple(float(part) for part in re.split(r"[\s/,;]+", text))
        if float in kinds:
            return float(text)
    except ValueError:
        raise RequestError(f"{name}={shorten(text, 30)}", "must be a number", fix) from None
    if bool in kinds:
        if text.lower() not in (*_YES, *_NO):
            raise RequestError(f"{name}={shorten(text, 30)}", "must be yes or no", fix)
        return text.lower() in _YES
    return text
