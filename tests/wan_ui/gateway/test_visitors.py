import asyncio

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from wan_ui.gateway.visitors import COOKIE, VisitorCookie, owner_name

TOKEN = "A" * 43


def client(**options) -> TestClient:
    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse(owner_name(request.cookies))

    app = Starlette(routes=[Route("/", home), Route("/other", home)], middleware=[Middleware(VisitorCookie)])
    return TestClient(app, **options)


def test_the_first_page_brings_a_cookie_that_scripts_cannot_read():
    cookie = client().get("/").headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and "Secure" not in cookie


def test_over_https_the_cookie_never_travels_in_the_clear():
    assert "Secure" in client(base_url="https://testserver").get("/").headers["set-cookie"]
    assert "Secure" in client().get("/", headers={"x-forwarded-proto": "https"}).headers["set-cookie"]


def test_a_visitor_keeps_the_same_name_and_another_gets_another():
    one, two = client(), client()
    one.get("/"), two.get("/")
    assert one.get("/").text == one.get("/other").text != two.get("/").text
    assert "set-cookie" not in one.get("/").headers


def test_a_made_up_cookie_is_replaced():
    assert COOKIE in client(cookies={COOKIE: "admin"}).get("/").headers["set-cookie"]


def test_the_stored_name_does_not_give_the_cookie_away():
    assert TOKEN not in owner_name({COOKIE: TOKEN}) and owner_name({COOKIE: TOKEN}).startswith("visitor-")


def test_callers_without_a_cookie_are_told_apart_by_session_and_are_never_a_visitor():
    assert owner_name({}, "abc") == owner_name({}, "abc") != owner_name({}, "xyz")
    assert owner_name({}, TOKEN).split("-")[1] == owner_name({COOKIE: TOKEN}).split("-")[1]  # the same digest of the token
    assert owner_name({}, TOKEN) != owner_name({COOKIE: TOKEN})
    assert owner_name({}) != owner_name({})


def test_websockets_and_lifespan_pass_untouched():
    passed = []

    async def app(scope, receive, send):
        passed.append(scope["type"])

    asyncio.run(VisitorCookie(app)({"type": "lifespan"}, None, None))
    assert passed == ["lifespan"]
