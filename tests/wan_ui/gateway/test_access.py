"""Tests of the operator's key, the generated password, and limits on uploads."""

import asyncio
import errno
import hashlib
import os
import sqlite3
import stat
from contextlib import closing

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from backend.engine.keys import Keys
from wan_ui.components.field_errors import shorten_paths
from wan_ui.gateway.access import KEY_FILE, OPERATOR_COOKIE, Access, OperatorLink
from wan_ui.gateway.uploads import UploadLimit
from wan_ui.gateway.visitors import COOKIE, owner_name
from wan_ui.serve import ServerOptions, open_operator_link


@pytest.fixture
def access(tmp_path) -> Access:
    return Access.load_or_create(tmp_path)


def site(access: Access) -> TestClient:
    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse("operator" if access.is_operator(request.cookies) else "visitor")

    return TestClient(Starlette(routes=[Route("/", home)], middleware=[Middleware(OperatorLink, access=access)]))


def test_the_key_is_kept_and_is_for_its_owner_only(access, tmp_path):
    assert Access.load_or_create(tmp_path).key == access.key and len(access.key) == 43
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("left", [b"", b"\n", b"x" * 31, b"\0" * 43, b"\xff" * 43])
def test_a_key_that_an_accident_cut_short_opens_nothing(tmp_path, left):
    (tmp_path / KEY_FILE).write_bytes(left)
    access = Access.load_or_create(tmp_path)
    assert len(access.key) == 43 and access.key == Access.load_or_create(tmp_path).key
    assert not access.is_operator({OPERATOR_COOKIE: hashlib.sha256(left.strip()).hexdigest()})
    assert not access.is_operator_key(left.decode("ascii", errors="replace").strip())
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600


def test_a_full_disk_leaves_no_key(tmp_path, monkeypatch):
    def refuse(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        Access.load_or_create(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_operators_own_key_is_kept_if_it_is_long_enough(tmp_path):
    (tmp_path / KEY_FILE).write_text("correct-horse-battery-staple-2024\n")
    assert Access.load_or_create(tmp_path).key == "correct-horse-battery-staple-2024"


def test_the_link_makes_a_browser_the_operators_and_leaves_the_address(access):
    client = site(access)
    answer = client.get(f"/?operator={access.key}", follow_redirects=False)
    cookie = answer.headers["set-cookie"]
    assert (answer.status_code, answer.headers["location"]) == (303, "/") and access.key not in cookie
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert client.get("/").text == "operator"


@pytest.mark.parametrize("key", ["", "wrong", "圆"])
def test_another_key_does_nothing(access, key):
    client = site(access)
    assert "set-cookie" not in client.get(f"/?operator={key}", follow_redirects=False).headers
    assert client.get("/").text == "visitor"
    assert not access.is_operator({"studio_operator": access.key})


@pytest.mark.parametrize(
    ("server_options", "is_needed"),
    [
        (dict(host="127.0.0.1", share=False), False),
        (dict(host="localhost", share=False), False),
        (dict(host="127.0.0.1", share=True), True),
        (dict(host="0.0.0.0", share=False), True),
        (dict(host="10.0.0.5", share=False, auth=("a", "b")), False),
        (dict(host="0.0.0.0", share=True, is_open=True), False),
    ],
)
def test_a_password_is_made_where_others_can_come_in(server_options, is_needed):
    assert ServerOptions(**{"port": 1, "auth": None} | server_options).needs_password is is_needed


def test_uploads_are_limited_for_each_visitor():
    async def take(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(len(await request.body())))

    def visitor(letter: str) -> TestClient:
        return TestClient(app, cookies={"studio_visitor": letter * 43})

    app = Starlette(
        routes=[Route("/gradio_api/upload", take, methods=["POST"]), Route("/other", take, methods=["POST"])],
        middleware=[Middleware(UploadLimit, most_bytes=100)],
    )
    assert visitor("A").post("/gradio_api/upload", content=b"x" * 60).text == "60"
    refused = visitor("A").post("/gradio_api/upload", content=b"x" * 60)
    assert refused.status_code == 429 and "Try again later" in refused.text
    assert visitor("A").post("/gradio_api/upload", content=b"x" * 40).status_code == 200
    assert visitor("B").post("/gradio_api/upload", content=b"x" * 60).status_code == 200
    assert visitor("A").post("/other", content=b"x" * 600).status_code == 200


def test_a_program_has_its_own_share_of_the_uploads_wherever_it_is(access, tmp_path):
    async def take(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(len(await request.body())))

    keys = Keys(tmp_path)
    one, two = ({"authorization": f"Bearer {keys.create(name)[1]}"} for name in ("one", "two"))
    limits = Middleware(UploadLimit, access=access, most_bytes=100, most_of_address=100)
    site = TestClient(
        Starlette(routes=[Route("/v1/videos", take, methods=["POST"])], middleware=[limits]), client=("203.0.113.1", 1)
    )
    assert site.post("/v1/videos", content=b"x" * 60, headers=one).status_code == 200
    refused = site.post("/v1/videos", content=b"x" * 60, headers=one)
    assert refused.status_code == 429 and refused.json()["error"]["type"] == "rate_limit_error"
    assert site.post("/v1/videos", content=b"x" * 60, headers=two).status_code == 200
    assert site.post("/v1/videos", content=b"x" * 60).status_code == 200


def test_a_key_says_who_asks_and_only_the_operators_makes_one_the_operator(access, tmp_path):
    key, secret = Keys(tmp_path).create("shop")
    for header, found in ((f"Bearer {secret}", key), (f"bearer  {secret}", key), (f"Basic {secret}", None), (secret, None)):
        program = access.find_program_key({"authorization": header})
        assert (program and program.owner) == (found and found.owner)
    assert (
        not access.has_operator_key({"authorization": f"Bearer {secret}"})
        and access.find_program_key({"authorization": f"Bearer {access.key}"}) is None
    )
    assert Access("key").find_program_key({"authorization": f"Bearer {secret}"}) is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "Try again; the reason stands at the end of /home/me/data/logs/worker-1.log",
            "Try again; the reason stands at the end of worker-1.log",
        ),
        ("FileNotFoundError: '/srv/models/wan tiny/x.bin'", "FileNotFoundError: 'wan tiny/x.bin'"),
        ("3 / 4 of a/b and https://example.com/a/b", "3 / 4 of a/b and https://example.com/a/b"),
    ],
)
def test_folders_are_cut_out_of_what_visitors_read(text, shown):
    assert shorten_paths(text) == shown


def test_everybody_sees_their_own_and_the_operator_sees_all(access):
    mine, theirs = {COOKIE: "A" * 43}, {COOKIE: "B" * 43}
    operator = theirs | {OPERATOR_COOKIE: access._cookie()}
    owner = owner_name(mine)
    assert [access.may_see(cookies, owner) for cookies in (mine, theirs, {}, operator)] == [True, False, False, True]
    assert access.visible_owner(mine) == owner and access.visible_owner(operator) is None
    assert access.visible_owner({}, "page") == owner_name({}, "page") != access.visible_owner({}, "other page")


def test_while_another_process_holds_the_keys_only_who_has_one_waits(tmp_path):
    _, secret = Keys(tmp_path).create("program")
    access, headers = Access("key", Keys(tmp_path)), {"authorization": f"Bearer {secret}"}

    async def ask() -> bool:
        asked = asyncio.create_task(access.has_program_key(headers))
        await asyncio.sleep(0)
        assert (
            not await access.has_program_key({})
            and not await access.has_program_key({"authorization": "Bearer other"})
            and not asked.done()
        )
        other.execute("ROLLBACK")
        return await asked

    with closing(sqlite3.connect(tmp_path / "keys.sqlite3", isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert asyncio.run(ask())


def test_a_key_is_looked_up_once_a_request(tmp_path):
    access, (_, key) = Access.load_or_create(tmp_path), Keys(tmp_path).create("bot")
    headers = {"authorization": f"Bearer {key}"}

    async def answered() -> None:
        assert await access.has_program_key(headers)
        with closing(sqlite3.connect(tmp_path / "keys.sqlite3", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            assert (
                access.find_program_key(headers).name == Access.load_or_create(tmp_path).find_program_key(headers).name == "bot"
            )
            assert (await asyncio.to_thread(access.find_program_key, headers)).name == "bot"
            other.execute("ROLLBACK")

    asyncio.run(answered())
    Keys(tmp_path).revoke("bot")
    assert access.find_program_key(headers) is None, "the next request asks again"


def test_the_browser_is_given_a_page_that_leads_to_the_operators_link_and_no_key(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    for _ in range(2):
        open_operator_link("http://127.0.0.1:7860/?operator=secret", tmp_path)
    page = tmp_path / "operator.html"
    assert opened == [page.as_uri()] * 2 and page.stat().st_mode & 0o077 == 0
    assert 'url=http://127.0.0.1:7860/?operator=secret"' in page.read_text("utf-8")
