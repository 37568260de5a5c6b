"""The visitors' password is read from the command line, else from a variable, else from a file."""

import pytest

from backend.cli.arguments import login_from_arguments
from backend.cli.command_line import parse
from backend.errors import RequestError


def test_a_password_needs_no_command_line(monkeypatch, tmp_path):
    monkeypatch.delenv("STUDIO_AUTH", raising=False)
    monkeypatch.delenv("STUDIO_AUTH_FILE", raising=False)
    assert login_from_arguments(parse(["serve"])) is None
    (tmp_path / "password").write_text("me:of:the file\n")
    monkeypatch.setenv("STUDIO_AUTH_FILE", str(tmp_path / "password"))
    assert login_from_arguments(parse(["serve"])) == ("me", "of:the file")
    monkeypatch.setenv("STUDIO_AUTH", "me:of the variable")
    assert login_from_arguments(parse(["serve"])) == ("me", "of the variable")
    assert login_from_arguments(parse(["serve", "--auth", "me:here"])) == ("me", "here")


def test_half_a_password_is_refused(monkeypatch, tmp_path):
    for text in ("me", "me:", ":secret"):
        monkeypatch.setenv("STUDIO_AUTH", text)
        with pytest.raises(RequestError, match="must be USER:PASSWORD"):
            login_from_arguments(parse(["serve"]))
    monkeypatch.delenv("STUDIO_AUTH")
    monkeypatch.setenv("STUDIO_AUTH_FILE", str(tmp_path / "none"))
    with pytest.raises(RequestError, match="must be a readable file"):
        login_from_arguments(parse(["serve"]))
