"""Check keys for programs: shown once, stored hashed, only for the operator's account, and invalid right after revocation."""

import hashlib
import sqlite3
import stat
import threading
from contextlib import closing

import pytest

from backend.engine import keys
from backend.engine.keys import FILE, USUAL_LIMIT, Keys
from backend.errors import DataFolderError, RequestError


@pytest.fixture
def some(tmp_path) -> Keys:
    return Keys(tmp_path / "data")


def test_without_keys_there_is_no_file(some, tmp_path):
    assert some.list_keys() == [] and some.find_by_secret("studio-" + "x" * 43) is None
    assert list(tmp_path.iterdir()) == []


def test_a_key_is_known_by_its_secret_only(some):
    key, secret = some.create("  shop  one ")
    assert (key.name, key.most_waiting, key.used) == ("shop one", USUAL_LIMIT, None) and len(secret) > 43
    found = some.find_by_secret(secret)
    assert (found.name, found.owner) == (key.name, key.owner)
    for wrong in ("", secret[:-1], secret + "x", secret.upper(), "studio-", key.owner, "圆", "\ud800", "studio-\ud800"):
        assert some.find_by_secret(wrong) is None


def test_what_is_stored_opens_nothing(some, tmp_path):
    _, secret = some.create("shop")
    file = tmp_path / "data" / FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secret.removeprefix("studio-").encode() not in file.read_bytes()
    with closing(sqlite3.connect(file)) as database:
        stored = database.execute("SELECT digest FROM keys").fetchone()[0]
    assert stored == hashlib.sha256(secret.encode()).hexdigest() and some.find_by_secret(stored) is None


def test_a_file_that_others_could_read_is_closed_to_them_with_the_next_key(some, tmp_path):
    some.create("one")
    (tmp_path / "data" / FILE).chmod(0o644)
    some.create("two")
    assert stat.S_IMODE((tmp_path / "data" / FILE).stat().st_mode) == 0o600


def test_a_running_server_sees_what_a_command_changes(some, tmp_path):
    server = Keys(tmp_path / "data")
    _, secret = some.create("shop")
    assert server.find_by_secret(secret).name == "shop"
    some.revoke("shop")
    assert server.find_by_secret(secret) is None and server.list_keys() == []


def test_a_new_key_of_an_old_name_is_another_owner(some):
    first, _ = some.create("shop")
    some.revoke("shop")
    assert some.create("shop")[0].owner != first.owner


@pytest.mark.parametrize("name", ["", " ", "x" * 61, "a\0b", "a\x1b[31m"])
def test_a_name_is_short_and_can_be_read(some, name):
    with pytest.raises(RequestError, match="must have 1 to 60 visible characters"):
        some.create(name)


@pytest.mark.parametrize("limit", [0, -1, 101])
def test_a_limit_is_between_1_and_100(some, limit):
    with pytest.raises(RequestError, match="must be between 1 and 100"):
        some.create("shop", limit)


def test_a_name_is_given_once(some):
    _, secret = some.create("shop")
    with pytest.raises(RequestError, match="is already used"):
        some.create("shop")
    assert some.find_by_secret(secret) and len(some.list_keys()) == 1


def test_only_what_is_there_is_revoked(some):
    with pytest.raises(RequestError, match="no keys exist"):
        some.revoke("shop")
    some.create("shop")
    with pytest.raises(RequestError, match="must be one of shop"):
        some.revoke("shops")


def test_the_last_use_is_kept_to_the_minute(some, monkeypatch):
    _, secret = some.create("shop")
    now = [1000.0]
    monkeypatch.setattr(keys.time, "time", lambda: now[0])
    for moment, used in ((1000.0, 1000.0), (1059.0, 1000.0), (1060.0, 1060.0)):
        now[0] = moment
        some.find_by_secret(secret)
        assert some.list_keys()[0].used == used


def test_a_key_still_opens_where_its_use_cannot_be_kept(some, tmp_path, monkeypatch, caplog):
    _, secret = some.create("shop")
    monkeypatch.setattr(keys, "_WAIT_SECONDS", 0.05)
    blocker = sqlite3.connect(tmp_path / "data" / FILE, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    assert some.find_by_secret(secret).name == "shop" and "could not be stored" in caplog.text
    blocker.close()


def test_a_damaged_file_is_named(some, tmp_path):
    some.create("shop")
    (tmp_path / "data" / FILE).write_bytes(b"no database" * 1000)
    for ask in (some.list_keys, lambda: some.find_by_secret("studio-x"), lambda: some.create("two")):
        with pytest.raises(DataFolderError, match=f"{FILE} cannot be used"):
            ask()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataFolderError, match="cannot be used"):
        Keys(tmp_path / "file").create("shop")


def test_many_ask_at_once(some):
    secrets = [some.create(f"program {number}")[1] for number in range(8)]
    found = []
    threads = [
        threading.Thread(target=lambda one=one: found.append(some.find_by_secret(one).name)) for one in secrets for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(f"program {number}" for number in range(8) for _ in range(4))
