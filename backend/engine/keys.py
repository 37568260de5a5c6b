"""Keys for programs: each is an owner of its own with a limit of its own, until it is revoked. Knows no requests.

A key is 256 random bits. It is shown once, when it is made; its SHA-256 is kept, so that nobody who reads the file can act as the
program. A slow hash with a salt is for passwords, because of those people choose so few that they can be tried. Of 2^256 random
keys nobody can try a share worth naming, so a fast hash is as safe, and a key can be checked at each request.

The file is opened anew for each question: a running server sees at once what a command has changed. Only the operator's account
may read it.
"""

import contextlib
import hashlib
import hmac
import json
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from backend.engine.user_presets import validate_name
from backend.errors import DataFolderError, RequestError

FILE = "keys.sqlite3"
PREFIX = "studio-"  # tells our keys from other bearer tokens, such as those that a proxy sends on
_OWNER = "key-"  # begins the names of programs in the job store
USUAL_LIMIT = 20  # videos in line, as for a visitor
MOST_LIMIT = 100  # as many as may be in line in all
_WAIT_SECONDS = 2.0  # for another process's write; each takes milliseconds
_USE_SECONDS = 60.0  # the last use is kept to the minute, so that not every request writes
_SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (
    name TEXT PRIMARY KEY, digest TEXT NOT NULL UNIQUE, most_waiting INTEGER NOT NULL, created REAL NOT NULL, used REAL,
    notify TEXT NOT NULL DEFAULT '[]');
"""
_COLUMNS = "name, digest, most_waiting, created, used, notify"
_ADD_NOTIFY = "ALTER TABLE keys ADD COLUMN notify TEXT NOT NULL DEFAULT '[]'"  # of a file that an earlier version made

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Key:
    """A program's key without its secret. `owner` is the program's name in the job store, `most_waiting` how many videos it may
    have in line, `notify` the addresses at which the end of each is told; times are seconds since the epoch, `used` None before
    the first use."""

    name: str
    owner: str
    most_waiting: int
    created: float
    used: float | None
    notify: tuple[str, ...] = ()


class Keys:
    """The keys of one data folder. Safe from several threads and processes."""

    def __init__(self, data_dir: Path):
        """Nothing is made before the first key is."""
        self._path = data_dir.absolute() / FILE

    def create(self, name: str, most_waiting: int = USUAL_LIMIT, notify: Sequence[str] = ()) -> tuple[Key, str]:
        """A new key and its secret, which is not kept. Raises: RequestError, DataFolderError."""
        name = validate_name(name)
        if not 1 <= most_waiting <= MOST_LIMIT:
            rule = f"must be between 1 and {MOST_LIMIT}"
            raise RequestError(f"limit={most_waiting}", rule, f"leave it out to have {USUAL_LIMIT}")
        secret = PREFIX + secrets.token_urlsafe(32)
        row = (name, _digest(secret), most_waiting, time.time(), None, json.dumps(list(notify)))
        self._make_file()
        try:
            with self._opened() as database:
                database.execute(_SCHEMA)
                _add_later_column(database)
                database.execute(f"INSERT INTO keys ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", row)
        except sqlite3.IntegrityError:
            raise RequestError(f"name={name!r}", "is another key's", "choose another name, or revoke that key first") from None
        return _key(row), secret

    def list_keys(self) -> list[Key]:
        """All keys that are not revoked, oldest first. Raises: DataFolderError."""
        return sorted((_key(row) for row in self._rows()), key=lambda key: key.created)

    def revoke(self, name: str) -> None:
        """Ends a key. What was made with it stays, for the operator; a new key of this name is another owner.

        Raises: RequestError if there is no such key, DataFolderError.
        """
        name, names = validate_name(name), [key.name for key in self.list_keys()]
        if not names:
            raise RequestError(f"name={name!r}", "is no key's: there are none", "`python app.py keys create NAME` makes one")
        if name not in names:
            rule = f"must be one of {', '.join(names)}"
            raise RequestError(f"name={name!r}", rule, "`python app.py keys list` says more about them")
        with self._opened() as database:
            database.execute("DELETE FROM keys WHERE name = ?", (name,))

    def find_by_secret(self, secret: str) -> Key | None:
        """The key with this secret; None if there is none, or if it was revoked. Raises: DataFolderError."""
        if not is_program_key(secret):
            return None
        digest = _digest(secret)
        found = [row for row in self._rows() if hmac.compare_digest(row[1], digest)]
        if not found:
            return None
        key = _key(found[0])
        if time.time() - (key.used or 0.0) >= _USE_SECONDS:
            self._note_use(key)
        return key

    def find_by_owner(self, owner: str) -> Key | None:
        """The key that this owner of jobs has; None if it was revoked, or is no program. Raises: DataFolderError."""
        return next((key for key in map(_key, self._rows()) if key.owner == owner), None) if has_key(owner) else None

    def _note_use(self, key: Key) -> None:
        try:
            with self._opened() as database:
                database.execute("UPDATE keys SET used = ? WHERE name = ?", (time.time(), key.name))
        except DataFolderError as error:
            log.warning("The last use of the key %r could not be kept: %s", key.name, error)

    def _rows(self) -> list[tuple]:
        if not self._path.is_file() or self._path.stat().st_size == 0:  # empty: the first key is being made
            return []
        with self._opened() as database:
            _add_later_column(database)
            return database.execute(f"SELECT {_COLUMNS} FROM keys").fetchall()

    def _make_file(self) -> None:
        """Makes the file for its owner only, before SQLite would make it for everybody; so are its journals then."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600))
            self._path.chmod(0o600)  # it may have been copied here
        except OSError as error:
            raise self._trouble(error) from error

    @contextmanager
    def _opened(self) -> Generator[sqlite3.Connection]:
        """The file, closed again after the block. Raises: DataFolderError for all of SQLite's errors but a name that is taken."""
        try:
            address = f"{self._path.as_uri()}?mode=rw"
            with closing(sqlite3.connect(address, uri=True, timeout=_WAIT_SECONDS, isolation_level=None)) as database:
                yield database
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise self._trouble(error) from error

    def _trouble(self, error: Exception) -> DataFolderError:
        fix = "move it away and make the keys anew, or choose another folder with --data-dir"
        return DataFolderError(f"{self._path} cannot be used ({error}):", "it must be a writable SQLite file", fix)


def is_program_key(secret: str) -> bool:
    """Whether this may be a key of ours, without a look at the file."""
    return secret.startswith(PREFIX)


def has_key(owner: str) -> bool:
    """Whether this owner is a program with a key."""
    return owner.startswith(_OWNER)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def _key(row: tuple) -> Key:
    name, digest, most_waiting, created, used, notify = row
    times, owner = {"created": created, "used": used}, f"{_OWNER}{digest[:32]}"
    return Key(name=name, owner=owner, most_waiting=most_waiting, notify=tuple(json.loads(notify)), **times)


def _add_later_column(database: sqlite3.Connection) -> None:
    if "notify" not in {row[1] for row in database.execute("PRAGMA table_info(keys)")}:
        with contextlib.suppress(sqlite3.OperationalError):  # another process has just done so
            database.execute(_ADD_NOTIFY)
