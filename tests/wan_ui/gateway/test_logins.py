"""Tests that wrong passwords delay the next try of an address, and are logged."""

import asyncio
import logging
from http import HTTPStatus

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from wan_ui.gateway import logins
from wan_ui.gateway.limits import WRONG_PASSWORDS
from wan_ui.gateway.logins import FORGET_SECONDS, FREE_TRIES, LOGIN_SECONDS, LONGEST_PAUSE, LoginLimit, Logins
from wan_ui.gradio_fixes import install_gateway


class Clock:
    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def visitor(clock):
    async def login(request: Request) -> PlainTextResponse:
        return PlainTextResponse("", 200 if await request.body() == b"right" else 400)

    app = Starlette(routes=[Route("/login", login, methods=["POST"])], middleware=[Middleware(LoginLimit, now=clock)])
    return lambda address: TestClient(app, client=(address, 1))


def test_a_login_ends_a_week_after_its_last_use(clock):
    kept = Logins(clock)
    kept["anna's"], kept["ben's"] = "user", "user"
    clock.seconds += LOGIN_SECONDS - 1
    assert kept.get("anna's") == "user" and list(kept) == ["ben's", "anna's"]
    clock.seconds += 2
    assert "ben's" not in kept and kept.get("ben's") is None and "anna's" in kept and len(kept) == 1
    del kept["anna's"]
    assert list(kept) == []


def test_no_more_logins_are_kept_than_there_is_room_for(clock, monkeypatch):
    monkeypatch.setattr(logins, "MOST_LOGINS", 2)
    kept = Logins(clock)
    for token in ("one", "two", "three"):
        kept[token] = "user"
    assert list(kept) == ["two", "three"]


def test_the_server_keeps_its_logins_so():
    async def tokens() -> object:
        app = Starlette()
        async with install_gateway(Middleware(LoginLimit), Logins)(app):
            return app.tokens

    assert isinstance(asyncio.run(tokens()), Logins)


def wrong(client: TestClient, times: int) -> list[int]:
    return [client.post("/login", content=b"wrong").status_code for _ in range(times)]


def test_after_five_wrong_passwords_the_pauses_grow(visitor, clock):
    one = visitor("203.0.113.1")
    assert wrong(one, FREE_TRIES + 3) == [400] * FREE_TRIES + [429] * 3
    assert one.post("/login", content=b"right").status_code == HTTPStatus.TOO_MANY_REQUESTS
    pauses = []
    for _ in range(9):
        pauses.append(int(one.post("/login", content=b"wrong").headers["retry-after"]))
        clock.seconds += pauses[-1]
        assert wrong(one, 1) == [400]
    assert pauses[:3] == [5, 10, 20] and pauses[-1] == LONGEST_PAUSE


def test_other_addresses_do_not_wait_and_the_right_password_ends_the_pauses(visitor, clock):
    assert wrong(visitor("203.0.113.1"), 6)[-1] == 429
    assert visitor("203.0.113.2").post("/login", content=b"right").status_code == 200
    clock.seconds += 10
    assert visitor("203.0.113.1").post("/login", content=b"right").status_code == 200
    assert wrong(visitor("203.0.113.1"), 6) == [400] * 5 + [429]


def test_a_network_of_ipv6_is_one_address(visitor):
    for number in range(5):
        wrong(visitor(f"2001:db8:1:2::{number}"), 1)
    assert wrong(visitor("2001:db8:1:2:ffff::1"), 1) == [429] and wrong(visitor("2001:db8:1:3::1"), 1) == [400]


def test_wrong_passwords_are_forgotten(visitor, clock):
    wrong(visitor("203.0.113.1"), 5)
    clock.seconds += FORGET_SECONDS + 1
    assert wrong(visitor("203.0.113.1"), 6) == [400] * 5 + [429]


def test_each_is_logged_without_what_was_typed(visitor, caplog):
    with caplog.at_level(logging.WARNING):
        wrong(visitor("203.0.113.1"), 6)
        wrong(visitor("\x1b[2Jevil\n"), 1)
    assert len([line for line in caplog.messages if "Wrong password from 203.0.113.1" in line]) == 5
    assert "203.0.113.1 must wait 5 s" in caplog.text and "\x1b" not in caplog.text and "evil" not in caplog.text


def test_nobody_behind_a_tunnel_locks_out_the_others_for_long(visitor, clock):
    one = visitor("127.0.0.1")
    for _ in range(20):
        wrong(one, 6)
        clock.seconds += 20
    assert one.post("/login", content=b"right").status_code == 200


def test_addresses_that_are_made_up_do_not_help(visitor, clock):
    answers = [wrong(visitor(f"203.0.{number}.1"), 1)[0] for number in range(WRONG_PASSWORDS.in_all + 1)]
    assert answers == [400] * WRONG_PASSWORDS.in_all + [429]
    last = visitor("198.51.100.1").post("/login", content=b"right")
    assert last.status_code == HTTPStatus.TOO_MANY_REQUESTS and 0 < int(last.headers["retry-after"]) <= 60
    clock.seconds += 61
    assert visitor("198.51.100.1").post("/login", content=b"right").status_code == 200


def test_right_passwords_do_not_count(visitor):
    for _ in range(WRONG_PASSWORDS.in_all + 5):
        assert visitor("203.0.113.1").post("/login", content=b"right").status_code == 200


@pytest.fixture
def two() -> list[TestClient]:
    """Return two logged-in clients of an app that sets cookies as Gradio does, over HTTPS."""

    async def login(request: Request) -> PlainTextResponse:
        answer, token = PlainTextResponse(""), (await request.body()).decode()
        request.app.tokens[token] = "user"
        answer.set_cookie("access-token-7", token, httponly=True, samesite="none", secure=True)
        answer.set_cookie("access-token-unsecure-7", token, httponly=True)
        return answer

    app = Starlette(routes=[Route("/login", login, methods=["POST"])], middleware=[Middleware(LoginLimit)])
    app.auth, app.cookie_id, app.tokens = ("user", "password"), "7", Logins()
    browsers = [TestClient(app, "https://testserver", follow_redirects=False) for _ in range(2)]
    for name, browser in zip(("anna", "ben"), browsers, strict=True):
        cookies = browser.post("/login", content=name).headers.get_list("set-cookie")
        assert len(cookies) == 2 and all("samesite=lax" in one.lower() and "none" not in one.lower() for one in cookies)
    return browsers


def test_only_the_asking_login_ends_and_only_by_a_post_of_our_page(two):
    anna, ben = two
    tokens = anna.app.tokens
    for answer in (anna.get("/logout"), anna.get("/logout?all_session=true"), anna.post("/logout")):
        assert answer.status_code == HTTPStatus.METHOD_NOT_ALLOWED and set(tokens) == {"anna", "ben"}
    answer = ben.post("/logout", headers={"origin": "https://testserver"})
    assert answer.status_code == HTTPStatus.SEE_OTHER and set(tokens) == {"anna"} and not ben.cookies
