"""Check who is notified of a video's end, at which address and with which text. A real server receives Apprise's messages."""

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, Queue

import pytest

from backend.engine.engine import Engine
from backend.engine.keys import Keys
from backend.engine.notifications import is_address
from tests.backend.conftest import FAKE, all_events, request
from tests.backend.engine.test_database import make_older


class Post(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.told.put((self.path, body["title"], body["message"], body["type"]))
        self.send_response(500 if "broken" in self.path else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Post) as server:
        server.told = Queue()
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def engine(tmp_path, server) -> Iterator[Engine]:
    """An engine whose operator has two addresses for notifications. The first address always fails."""
    addresses = [f"json://127.0.0.1:{server.server_port}/{name}" for name in ("broken-pa55word", "operator")]
    engine = Engine(tmp_path, pipeline=FAKE, notify=addresses)
    yield engine
    engine.close()


def ended(engine: Engine, prompt: str, owner: str, *, is_operators: bool = False) -> None:
    job = engine.submit(request(prompt=prompt), owner)
    if is_operators:
        engine.jobs.request_notification(job.id)
    all_events(engine, job.id)


def told(server: ThreadingHTTPServer) -> tuple[str, str, str, str]:
    while (one := server.told.get(timeout=60))[0].startswith("/broken"):
        pass
    return one


def test_each_is_told_of_their_own_and_nobody_of_a_visitors(engine, server, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    key, _ = Keys(tmp_path).create("shop", notify=[f"json://127.0.0.1:{server.server_port}/shop"])
    ended(engine, "a visitor's secret", "visitor-1")
    ended(engine, "the operator's own", "visitor-2", is_operators=True)
    path, title, text, kind = told(server)
    assert (path, title, kind) == ("/operator", "A video is finished", "success")
    assert text.startswith("the operator's own\nwan-tiny, ") and "seed" in text and "generated in" in text
    ended(engine, "for the shop", key.owner)
    path, title, text, _ = told(server)
    assert path == "/shop" and text.startswith("for the shop\n")
    ended(engine, "explode", "visitor-2", is_operators=True)
    path, title, text, kind = told(server)
    assert title.startswith("A video failed: ") and text.startswith("explode\n") and kind == "failure"
    engine.close()
    assert all(server.told.get_nowait()[0].startswith("/broken") for _ in range(server.told.qsize())), "and nobody else"
    said = " ".join(record.getMessage() for record in caplog.records if record.name == "backend.engine.notifications")
    assert "could not be sent to every address" in said and "pa55word" not in said


def test_one_that_is_stopped_is_not_told(engine, server, close_gate):
    close_gate("a held square")
    job = engine.submit(request(prompt="a held square"), "visitor-2")
    engine.jobs.request_notification(job.id)
    engine.queue.cancel(job.id)
    all_events(engine, job.id)
    with pytest.raises(Empty):
        server.told.get(timeout=0.5)


def test_a_key_of_an_earlier_version_tells_nobody(tmp_path):
    keys = Keys(tmp_path)
    keys.create("new")
    make_older(tmp_path / "keys.sqlite3", keys=["notify"])
    assert [key.notify for key in keys.list_keys()] == [()]
    keys.create("newer", notify=["json://localhost"])
    assert [key.notify for key in keys.list_keys()] == [(), ("json://localhost",)]


@pytest.mark.parametrize(("text", "is_one"), [("json://localhost", True), ("mailto://me:pw@example.org", True), ("hello", False)])
def test_what_apprise_knows_is_an_address(text, is_one):
    assert is_address(text) is is_one
