"""An endpoint may stream, answer whole, refuse images, hang, send HTML or far too much. Each leads to a suggestion or one
sentence.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from backend.errors import StudioError
from backend.prompt_rewriting.endpoint import MOST_BYTES, Endpoint
from backend.prompt_rewriting.helper import stream_suggestions
from backend.prompt_rewriting.request import RewriteRequest
from presets import load_preset

PICTURE = "data:image/jpeg;base64,QUJD"
Answer = Callable[[BaseHTTPRequestHandler, dict], None]


class Server(ThreadingHTTPServer):
    """A server whose chat completions are written by `answer`. It stores the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer: Answer = streamed("a red circle")
        self.asked: list[dict] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        send(self, json.dumps({"data": [{"id": "first"}, {"id": "second"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(body)
        self.server.keys.append(self.headers.get("authorization"))
        self.server.answer(self, body)

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


def send(handler: BaseHTTPRequestHandler, body: str, kind: str = "application/json", status: int = 200) -> None:
    data = body.encode()
    handler.send_response(status)
    handler.send_header("content-type", kind)
    handler.send_header("content-length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def events(*contents: object) -> str:
    return "".join(f"data: {json.dumps({'choices': [{'delta': {'content': one}}]})}\n\n" for one in contents) + "data: [DONE]\n\n"


def streamed(*contents: object) -> Answer:
    return lambda handler, body: send(handler, events(*contents), "text/event-stream; charset=utf-8")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def suggested(endpoint: Endpoint, asked: RewriteRequest, **limits: float) -> list[str]:
    async def collect() -> list[str]:
        return [one async for one in stream_suggestions(endpoint, asked, **limits)]

    return asyncio.run(collect())


def asked(prompt: str = "a cat", preset: str = "wan2.1-i2v-14b-720p", picture: str | None = None) -> RewriteRequest:
    starts = picture is not None
    return RewriteRequest(prompt=prompt, preset=load_preset(preset), seconds=5.0625, starts_from_picture=starts, picture=picture)


def test_it_streams_in_the_models_own_taste(server):
    server.answer = streamed("A grey", None, " cat", " sleeps.")
    assert suggested(Endpoint(url=server.url, key="secret"), asked()) == ["A grey", "A grey cat", "A grey cat sleeps."]
    system, user = (message["content"] for message in server.asked[0]["messages"])
    assert "model Wan" in system and "5.06 seconds" in user and user.endswith("a cat")
    assert server.asked[0]["model"] == "first" and server.keys == ["Bearer secret"]
    suggested(Endpoint(url=server.url + "/chat/completions", model="mine"), asked("一只猫", "ltx-2.5-704p"))
    system, user = (message["content"] for message in server.asked[1]["messages"])
    assert "声音" in system and "秒" in user and server.asked[1]["model"] == "mine" and server.keys[1] is None


def test_one_that_answers_whole_is_read_too(server):
    server.answer = lambda handler, body: send(handler, json.dumps({"choices": [{"message": {"content": "whole"}}]}))
    assert suggested(Endpoint(url=server.url), asked()) == ["whole"]


def test_it_is_shown_the_picture_and_asked_in_words_if_it_does_not_see(server):
    assert suggested(Endpoint(url=server.url), asked(picture=PICTURE)) == ["a red circle"]
    assert server.asked[0]["messages"][1]["content"][0]["image_url"]["url"] == PICTURE

    def blind(handler: BaseHTTPRequestHandler, body: dict) -> None:
        if isinstance(body["messages"][1]["content"], list):
            send(handler, json.dumps({"error": {"message": "image input is not supported"}}), status=500)
        else:
            streamed("words alone")(handler, body)

    server.answer = blind
    assert suggested(Endpoint(url=server.url), asked(picture=PICTURE)) == ["words alone"]


def test_thoughts_quotation_marks_and_what_cannot_be_seen_are_left_out(server):
    server.answer = streamed("<think>The user", " wants", " a cat.</think>\n\n", '"A cat\u202e\x07 ', 'on <b>a</b>\n\nmat."')
    assert suggested(Endpoint(url=server.url), asked())[-1] == "A cat on <b>a</b> mat."


def far_too_much(handler: BaseHTTPRequestHandler, body: dict) -> None:
    handler.send_response(200)
    handler.send_header("content-type", "text/event-stream")
    handler.end_headers()
    try:
        for _ in range(10 * MOST_BYTES // 10_000):
            handler.wfile.write(b": " + b"x" * 9_997 + b"\n")
    except OSError:
        pass  # the reader closed the connection, as it should


def hanging(handler: BaseHTTPRequestHandler, body: dict) -> None:
    handler.send_response(200)
    handler.send_header("content-type", "text/event-stream")
    handler.end_headers()
    handler.wfile.write(events("A")[:40].encode())
    handler.wfile.flush()
    threading.Event().wait(3)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda handler, body: send(handler, "<html>Log in</html>", "text/html"), "answered with text/html, which is no chat"),
        (lambda handler, body: send(handler, "<html>no</html>", "text/html", 502), "answered 502: without a reason"),
        (
            lambda handler, body: send(handler, '{"error": {"message": "no such\\nmodel"}}', status=404),
            "answered 404: no such model",
        ),
        (lambda handler, body: send(handler, '{"error": "wrong key: ...x7Qz"}', status=401), "refuses the studio's key; write"),
        (lambda handler, body: send(handler, "[1, 2"), "is no JSON"),
        (lambda handler, body: send(handler, "[" * 100_000), "is no JSON"),
        (lambda handler, body: send(handler, '{"choices": [3]}'), "wrote nothing"),
        (lambda handler, body: send(handler, 'data: {"error": "overloaded"}\n\n', "text/event-stream"), "overloaded"),
        (streamed({"not": "text"}, 5), "wrote nothing"),
        (far_too_much, "more than 1,000,000 bytes"),
        (hanging, "did not answer within 0.5 s"),
    ],
)
def test_what_goes_wrong_is_one_sentence(server, answer, words):
    server.answer = answer
    with pytest.raises(StudioError, match=words) as caught:
        suggested(Endpoint(url=server.url), asked(), silence=0.5)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_one_that_is_not_there_is_told(server):
    port = server.server_port
    server.server_close()
    with pytest.raises(StudioError, match="could not be rewritten"):
        suggested(Endpoint(url=f"http://127.0.0.1:{port}/v1", model="x"), asked())


@pytest.mark.parametrize("url", ["localhost:11434", "file:///etc/passwd", "http://", "http://[::1", ""])
def test_what_is_no_address_is_refused_at_the_start(url):
    with pytest.raises(StudioError, match="must be an address"):
        Endpoint(url=url)


def test_a_redirect_is_not_followed(server):
    def elsewhere(handler: BaseHTTPRequestHandler, body: dict) -> None:
        handler.send_response(307)
        handler.send_header("location", f"{server.url}/elsewhere")
        handler.send_header("content-length", "0")
        handler.end_headers()

    server.answer = elsewhere
    with pytest.raises(StudioError, match="answered 307"):
        suggested(Endpoint(url=server.url, model="x", key="secret"), asked())
    assert len(server.asked) == 1
