"""Tests of what requests write to the log: little, marked, and without control characters."""

import contextlib
import io
import json
import os
import threading

import pytest

from tests.wan_ui.conftest import _serving
from tests.wan_ui.visitor import Visitor
from wan_ui.gateway.limits import LOG_BYTES, LOG_FILE_BYTES, LOG_LINES
from wan_ui.gateway.log_guard import CURRENT, GuardedStream, RequestLog


@contextlib.contextmanager
def answering(who: str = "anna"):
    token = CURRENT.set(RequestLog(who=who))
    yield
    CURRENT.reset(token)


def test_a_request_writes_little_and_nobody_can_write_the_servers_lines():
    out = io.StringIO()
    guarded = GuardedStream(out)
    print("the server's own line", file=guarded)
    with answering():
        print("refused: a\nThe server's line?\x1b[31m\r\u2028" + "x" * 900_000, file=guarded)
        print("more", file=guarded)
    written = out.getvalue()
    assert written.startswith("the server's own line\n| refused: a\n| The server's line?\\x1b[31m\\r\\u2028xxx")
    assert written.endswith(" ...\n") and len(written.encode()) < LOG_BYTES.of_visitor + 100
    print("whole" * 1000, file=guarded)
    assert out.getvalue().endswith("whole" * 1000 + "\n")


def test_a_visitor_and_all_together_have_so_many_lines_a_minute():
    out, now = io.StringIO(), [0.0]
    guarded = GuardedStream(out, now=lambda: now[0])
    for number in range(2 * LOG_LINES.in_all):
        with answering(f"visitor {number % 50}" if number > 500 else "anna"):
            print(f"line {number}", file=guarded)
    lines = out.getvalue().splitlines()
    assert sum("line" in line for line in lines[: LOG_LINES.of_visitor]) == LOG_LINES.of_visitor
    assert len(lines) == LOG_LINES.in_all
    now[0] = 61.0
    with answering():
        print("later", file=guarded)
    assert out.getvalue().endswith("| later\n")


def test_a_log_that_is_large_begins_again(tmp_path):
    log = tmp_path / "server.log"
    with log.open("a") as file:
        guarded = GuardedStream(file, log)
        for _ in range(LOG_FILE_BYTES.in_all // 10_000 + 30):
            guarded.write("x" * 9_999 + "\n")
        file.flush()
    assert log.stat().st_size < LOG_FILE_BYTES.in_all and (tmp_path / "server.log.1").stat().st_size > LOG_FILE_BYTES.in_all


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Start a server and capture its log."""
    folder = tmp_path_factory.mktemp("log")
    with _serving("fake", folder) as server:
        yield server.url, folder / "server.log"


def test_calls_that_are_refused_fill_no_log(served):
    url, log = served
    visitor = Visitor(url, cookie=f"studio_visitor={os.urandom(32).hex()[:43]}")
    before = log.stat().st_size
    for _ in range(5):
        visitor.call("choose_preset", {"preset": "x" * 900_000})
    visitor.post("/gradio_api/run/a%0aTEXT%1b[31m", json.dumps({"data": []}).encode())
    written = log.read_bytes()[before:]
    assert len(written) <= 6 * LOG_BYTES.of_visitor and b"\x1b" not in written
    assert all(line.startswith(b"| ") for line in written.splitlines()), written


def test_threads_that_answer_a_request_are_guarded_too():
    out = io.StringIO()
    guarded = GuardedStream(out)
    with answering():
        import contextvars

        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(lambda: print("a", file=guarded),))
        thread.start()
        thread.join()
    assert out.getvalue() == "| a\n"
