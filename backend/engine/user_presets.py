"""Store visitors' presets and comparisons in SQLite. Stores no files and no paths."""

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass

from backend.engine.tables import TableGroup
from backend.errors import RequestError

LONGEST_NAME = 60
MOST_PRESETS = 200  # the most presets of a visitor
LONGEST_SETTINGS = 10_000  # the most characters of a preset's settings as JSON; real settings have fewer than 2,000


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Jobs that are compared: up to four side by side or, with `columns`, in a grid, row by row."""

    id: str
    owner: str
    jobs: tuple[str, ...]
    columns: int = 0


class UserPresets(TableGroup):
    """The presets and comparisons of all visitors. Each method is one transaction."""

    def presets(self, owner: str) -> dict[str, dict]:
        """Return the owner's presets by name. Settings are plain values."""
        rows = self._tables.rows("SELECT name, settings FROM own_presets WHERE owner = ? ORDER BY name COLLATE NOCASE", (owner,))
        return {name: json.loads(settings) for name, settings in rows}

    def save_presets(self, owner: str, presets: Mapping[str, dict]) -> None:
        """Store the presets by name, or after an error none. Replace existing presets with these names. Raises: RequestError."""
        named = {validate_name(name): json.dumps(settings) for name, settings in presets.items()}
        if longest := next((name for name, text in named.items() if len(text) > LONGEST_SETTINGS), None):
            rule = f"must have at most {LONGEST_SETTINGS} characters of settings"
            raise RequestError(f"the preset {longest!r}", rule, "shorten its negative prompt")
        with self._tables.transaction() as database:
            kept = {name for (name,) in database.execute("SELECT name FROM own_presets WHERE owner = ?", (owner,))}
            if len(kept | named.keys()) > MOST_PRESETS and named.keys() - kept:
                raise RequestError(f"you have {len(kept)} presets and", f"may have {MOST_PRESETS}", "delete some first")
            rows = [(owner, name, text, time.time()) for name, text in named.items()]
            database.executemany("INSERT OR REPLACE INTO own_presets VALUES (?, ?, ?, ?)", rows)

    def rename_preset(self, owner: str, old: str, new: str) -> None:
        """Rename a preset. Raises: RequestError if the name is used or invalid."""
        new = validate_name(new)
        if new != old and new in self.presets(owner):
            raise RequestError(f"the name {new!r}", "is already used", "choose another")
        self._tables.execute("UPDATE own_presets SET name = ? WHERE owner = ? AND name = ?", (new, owner, old))

    def delete_preset(self, owner: str, name: str) -> None:
        self._tables.execute("DELETE FROM own_presets WHERE owner = ? AND name = ?", (owner, name))

    def compare(self, owner: str, jobs: tuple[str, ...], columns: int = 0) -> Comparison:
        """Store a comparison under an id that cannot be guessed. `columns` is the width of a grid, 0 for side by side."""
        comparison = Comparison(id=secrets.token_hex(8), owner=owner, jobs=jobs, columns=columns)
        row = (comparison.id, owner, json.dumps(jobs), time.time(), columns)
        self._tables.execute("INSERT INTO comparisons (id, owner, jobs, created, columns) VALUES (?, ?, ?, ?, ?)", row)
        return comparison

    def comparison(self, comparison_id: str) -> Comparison | None:
        return next(iter(self._read("WHERE id = ?", comparison_id)), None)

    def comparisons(self) -> list[Comparison]:
        return self._read()

    def _read(self, where: str = "", *values: str) -> list[Comparison]:
        return [
            Comparison(id=row["id"], owner=row["owner"], jobs=tuple(json.loads(row["jobs"])), columns=row["columns"])
            for row in self._tables.rows(f"SELECT id, owner, jobs, columns FROM comparisons {where}", values)
        ]

    def forget_comparison(self, comparison_id: str) -> None:
        self._tables.execute("DELETE FROM comparisons WHERE id = ?", (comparison_id,))


def validate_name(name: str) -> str:
    """Return the name with single spaces between its words. Raises: RequestError for an invalid name."""
    name = " ".join(str(name or "").split())
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise RequestError(f"name={name[:80]!r}", f"must have 1 to {LONGEST_NAME} visible characters", "type a short name")
    return name
