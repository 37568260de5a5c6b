"""Tests that large requests are refused before a handler reads them, with and without a content length."""

import asyncio
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from wan_ui.gateway.body_limit import LONGEST_TEXT, MOST_BYTES, BodyLimit

PATHS = ("/gradio_api/upload", "/gradio_api/run/upload", "/gradio_api/upload/", "/mcp", "/login")


@pytest.fixture
def reached() -> list[str]:
    """Return the list in which the application records the paths of its calls."""
    return []


@pytest.fixture
def client(reached) -> TestClient:
    async def take(request: Request) -> PlainTextResponse:
        reached.append(request.url.path)
        return PlainTextResponse(str(len(await request.body())))

    routes = [Route(path, take, methods=["GET", "POST"]) for path in PATHS]
    return TestClient(Starlette(routes=routes, middleware=[Middleware(BodyLimit, most_bytes=1000)]))


def pieces(size: int) -> Iterator[bytes]:
    """A body without a content-length."""
    for _ in range(size // 10):
        yield b"x" * 10


@pytest.mark.parametrize("path", PATHS[1:])
@pytest.mark.parametrize("body", [b"x" * 1001, pieces], ids=["declared", "chunked"])
def test_a_large_body_never_reaches_the_application(client, reached, path, body):
    answer = client.post(path, content=body(1010) if callable(body) else body)
    assert answer.status_code == 413 and "at most 1 KB" in answer.json()["error"]
    assert reached == []


@pytest.mark.parametrize("body", [b"x" * 1000, pieces], ids=["declared", "chunked"])
def test_a_body_of_the_allowed_size_arrives_whole(client, body):
    assert client.post("/mcp", content=body(1000) if callable(body) else body).text == "1000"
    assert client.get("/mcp").text == "0"


def test_uploads_are_left_to_their_own_limit(client):
    assert client.post("/gradio_api/upload", content=b"x" * 5000).text == "5000"


@pytest.mark.parametrize("length", [b"5", b"-1", b"many", b""])
def test_a_body_that_grows_without_end_is_left_at_ten_times_the_limit(length):
    read, sent = [], []

    async def receive() -> dict:
        read.append(1)
        return {"type": "http.request", "body": b"x" * 100, "more_body": True}

    async def send(message: dict) -> None:
        sent.append(message)

    async def never(scope, receive, send) -> None:
        raise AssertionError("the application was called")

    scope = {"type": "http", "method": "POST", "path": "/login", "headers": [(b"content-length", length)]}
    asyncio.run(BodyLimit(never, most_bytes=1000)(scope, receive, send))
    assert sent[0]["status"] == 413 and len(read) == 101


def test_a_caller_who_hangs_up_is_told_to_the_application():
    seen = []

    async def receive() -> dict:
        return {"type": "http.disconnect"}

    async def listen(scope, receive, send) -> None:
        seen.append(await receive())

    asyncio.run(BodyLimit(listen)({"type": "http", "method": "POST", "path": "/mcp", "headers": []}, receive, None))
    assert seen == [{"type": "http.disconnect"}]


def test_the_longest_texts_of_a_form_fit_into_a_request():
    assert 4 * LONGEST_TEXT * 3 + 100_000 < MOST_BYTES  # a UTF-16 unit of the browser takes at most three bytes
