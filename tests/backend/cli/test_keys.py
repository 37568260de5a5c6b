"""Check the output and the exit codes of the command `keys`."""

import json
import signal

import pytest

from app import main
from backend.engine.keys import Keys


@pytest.fixture
def keys(tmp_path, capsys):
    """Run the command, and return its exit code, standard output and standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["keys", *words, "--data-dir", str(tmp_path)])
        return code, *capsys.readouterr()

    before = signal.getsignal(signal.SIGTERM)  # the command replaces this handler
    yield run
    signal.signal(signal.SIGTERM, before)


def test_a_key_is_shown_once_and_alone_on_standard_output(keys, tmp_path):
    code, out, err = keys("create", "shop")
    assert code == 0 and out.startswith("studio-") and out.count("\n") == 1 and "not shown again" in err
    assert Keys(tmp_path).find_by_secret(out.strip()).webhook_secret in err
    assert Keys(tmp_path).find_by_secret(out.strip()).name == "shop"
    for words in (("list",), ("list", "--json")):
        code, listed, _ = keys(*words)
        assert code == 0 and "shop" in listed and out.strip() not in listed


def test_json_is_one_value_on_standard_output(keys, tmp_path):
    made = json.loads(keys("create", "shop", "--limit", "3", "--json")[1])
    assert (made["name"], made["limit"]) == ("shop", 3) and made["key"].startswith("studio-")
    [listed] = json.loads(keys("list", "--json")[1])
    assert listed.keys() == {"name", "created", "last_used", "limit", "notifies"} and listed["last_used"] is None
    secret = Keys(tmp_path).find_by_secret(made["key"]).webhook_secret
    assert made["webhook_secret"] == secret and secret.startswith("whsec_") and secret not in keys("list")[1]


def test_the_list_says_when_a_key_was_used(keys, tmp_path):
    assert keys("list")[1] == ""
    secret = keys("create", "shop")[1].strip()
    assert "never used, at most 20 queued videos" in keys("list")[1]
    Keys(tmp_path).find_by_secret(secret)
    assert "last used 2" in keys("list")[1]


def test_a_revoked_key_is_gone(keys, tmp_path):
    secret = keys("create", "shop")[1].strip()
    assert keys("revoke", "shop")[:2] == (0, "")
    assert Keys(tmp_path).find_by_secret(secret) is None and keys("list")[1] == ""


@pytest.mark.parametrize("words", [("revoke", "shop"), ("create", "x" * 61), ("create", "shop", "--limit", "0")])
def test_a_wrong_request_is_one_line_and_exit_code_2(keys, words):
    code, out, err = keys(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_a_damaged_file_is_exit_code_1(keys, tmp_path):
    (tmp_path / "keys.sqlite3").write_bytes(b"no database" * 1000)
    code, out, err = keys("list")
    assert (code, out) == (1, "") and "keys.sqlite3 cannot be used" in err
