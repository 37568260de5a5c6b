"""Keys for programs. Each key is a separate owner of jobs with a separate limit, until the key is revoked.

A key is 256 random bits, and is shown once. Only its SHA-256 is stored. A fast hash without a salt is enough for random keys,
and can be computed for each request. The file is opened for each query, so a running server sees the changes of a command.
"""

import base64
import functools
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
from dataclasses import dataclass, field
from pathlib import Path

from backend.engine.database import create_missing, migrate
from backend.engine.user_presets import validate_name
from backend.errors import DataFolderError, RequestError

FILE = "keys.sqlite3"
PREFIX = "studio-"  # distinguishes keys from other bearer tokens, for example of a proxy
_OWNER = "key-"  # the owner of a job starts with this prefix if the job was submitted with a key
USUAL_LIMIT = 20  # default number of queued videos, as for a visitor
MOST_LIMIT = 100  # largest limit of a key; the queue takes at most this number of videos in total
_WAIT_SECONDS = 2.0  # the longest wait for another process's write, which takes milliseconds
_USE_SECONDS = 60.0  # the last use is stored at most once per minute
_TABLE = """
CREATE TABLE IF NOT EXISTS keys (
    name TEXT PRIMARY KEY, digest TEXT NOT NULL UNIQUE, most_waiting INTEGER NOT NULL, created REAL NOT NULL, used REAL,
    notify TEXT NOT NULL DEFAULT '[]');
"""
_MIGRATIONS = (functools.partial(create_missing, tables=_TABLE),)
_COLUMNS = "name, digest, most_waiting, created, used, notify"

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Key:
    """A program's key without its secret. Times are seconds since the epoch. Before the first use, `used` has the value None.

    `owner` is the program's name in the job store. `most_waiting` limits its queued videos. The addresses `notify` are notified
    when its videos end. `webhook_secret` signs the reports to its webhooks.
    """

    name: str
    owner: str
    most_waiting: int
    created: float
    used: float | None
    notify: tuple[str, ...] = ()
    webhook_secret: str = field(repr=False)


class Keys:
    """The keys of one data folder. The file of keys is created with the first key. Safe from several threads and processes."""

    def __init__(self, data_dir: Path):
        self._path = data_dir.absolute() / FILE

    def create(self, name: str, most_waiting: int = USUAL_LIMIT, notify: Sequence[str] = ()) -> tuple[Key, str]:
        """Create a key. Return it with its secret, which is not stored. Raises: RequestError, DataFolderError."""
        name = validate_name(name)
        if not 1 <= most_waiting <= MOST_LIMIT:
            rule = f"must be between 1 and {MOST_LIMIT}"
            raise RequestError(f"limit={most_waiting}", rule, f"omit the limit for the default of {USUAL_LIMIT}")
        secret = PREFIX + secrets.token_urlsafe(32)
        digest = hashlib.sha256(secret.encode()).hexdigest()
        row = (name, digest, most_waiting, time.time(), None, json.dumps(list(notify)))
        try:  # the file is for the operator's account only; SQLite then creates its journals with the same permissions
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600))
            self._path.chmod(0o600)  # a copied file may have other permissions
        except OSError as error:
            raise self._trouble(error) from error
        try:
            with self._opened() as database:
                database.execute(f"INSERT INTO keys ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", row)
        except sqlite3.IntegrityError:
            raise RequestError(f"name={name!r}", "is already used", "choose another name, or revoke that key first") from None
        return _read_key(row), secret

    def list_keys(self) -> list[Key]:
        """Return all keys that are not revoked, oldest first. Raises: DataFolderError."""
        return sorted((_read_key(row) for row in self._rows()), key=lambda key: key.created)

    def revoke(self, name: str) -> None:
        """Revoke a key, but keep its videos. A new key with this name is another owner. Raises: RequestError, DataFolderError."""
        name, names = validate_name(name), [key.name for key in self.list_keys()]
        if not names:
            raise RequestError(f"name={name!r}", "is not a key: no keys exist", "create a key: `python app.py keys create NAME`")
        if name not in names:
            rule = f"must be one of {', '.join(names)}"
            raise RequestError(f"name={name!r}", rule, "list the keys: `python app.py keys list`")
        with self._opened() as database:
            database.execute("DELETE FROM keys WHERE name = ?", (name,))

    def find_by_secret(self, secret: str) -> Key | None:
        """Return the key with this secret, None for an unknown or revoked key. Raises: DataFolderError."""
        if not secret.startswith(PREFIX):
            return None
        digest = hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
        rows = [row for row in self._rows() if hmac.compare_digest(row[1], digest)]
        if not rows:
            return None
        key = _read_key(rows[0])
        if time.time() - (key.used or 0.0) >= _USE_SECONDS:
            try:
                with self._opened() as database:
                    database.execute("UPDATE keys SET used = ? WHERE name = ?", (time.time(), key.name))
            except DataFolderError as error:
                log.warning("The last use of the key %r could not be stored: %s", key.name, error)
        return key

    def find_by_owner(self, owner: str) -> Key | None:
        """Return the key of this owner of jobs. None if it was revoked or the owner is not a program. Raises: DataFolderError."""
        return next((key for key in map(_read_key, self._rows()) if key.owner == owner), None) if has_key(owner) else None

    def _rows(self) -> list[tuple]:
        if not self._path.is_file() or self._path.stat().st_size == 0:  # empty: the first key is being created
            return []
        with self._opened() as database:
            return database.execute(f"SELECT {_COLUMNS} FROM keys").fetchall()

    @contextmanager
    def _opened(self) -> Generator[sqlite3.Connection]:
        """Open the file, migrate it, and close it after the block. Convert SQLite's errors, except IntegrityError."""
        try:
            address = f"{self._path.as_uri()}?mode=rw"
            with closing(sqlite3.connect(address, uri=True, timeout=_WAIT_SECONDS, isolation_level=None)) as database:
                migrate(database, self._path, _MIGRATIONS)
                yield database
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise self._trouble(error) from error

    def _trouble(self, error: Exception) -> DataFolderError:
        fix = "move it away and create the keys again, or choose another folder with --data-dir"
        return DataFolderError(f"{self._path} cannot be used ({error}):", "it must be a writable SQLite file", fix)


def has_key(owner: str) -> bool:
    return owner.startswith(_OWNER)


def _read_key(row: tuple) -> Key:
    name, digest, most_waiting, created, used, notify = row
    owner = f"{_OWNER}{digest[:32]}"
    derived = base64.b64encode(hmac.digest(bytes.fromhex(digest), b"webhook", hashlib.sha256)).decode()
    return Key(
        name=name,
        owner=owner,
        most_waiting=most_waiting,
        created=created,
        used=used,
        notify=tuple(json.loads(notify)),
        webhook_secret=f"whsec_{derived}",
    )
