"""Tests of change notifications: each page gets only its own changes, at once, and idle pages get nothing."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from backend.engine.engine import Engine
from tests.backend.conftest import FAKE, wait_for
from tests.backend.conftest import request as a_request
from wan_ui.gateway.access import Access
from wan_ui.gateway.visitors import COOKIE, owner_name
from wan_ui.routes import changes
from wan_ui.services.shared_work import SharedWork
from wan_ui.services.studio_context import StudioContext

ANNA, BEN = "a" * 43, "b" * 43
Until = Callable[[dict], object]


@pytest.fixture
def context(tmp_path) -> Iterator[StudioContext]:
    engine = Engine(tmp_path / "data", pipeline=FAKE)
    wait_for(lambda: engine.pool.status().state == "ready")
    yield StudioContext(engine=engine, access=Access.load_or_create(engine.settings.data_dir), can_run=engine.has_weights)
    engine.close()


def told(
    context: StudioContext, token: str, *untils: Until, act: Callable[[], object] = lambda: None, language: str = "en"
) -> list[dict]:
    """Return the first event for which each condition is true, in order. Calls `act` after the first event."""
    request = SimpleNamespace(cookies={COOKIE: token}, session_hash="x", headers={"accept-language": language}, client=None)

    async def listen() -> list[dict]:
        stream, found, has_acted = changes._event_stream(context, context.identify_caller(request), SharedWork()), [], False
        async for text in stream:
            if not text.startswith("data: "):
                continue
            news = json.loads(text[6:])
            if not has_acted:
                has_acted = await asyncio.to_thread(act) or True
            if untils[len(found)](news):
                found.append(news)
            if len(found) == len(untils):
                await stream.aclose()
                return found

    return asyncio.run(asyncio.wait_for(listen(), 20))


def in_queue(words: str) -> Until:
    return lambda news: words in news["parts"].get("queue", "")


def submit(context: StudioContext, token: str, prompt: str, **options) -> None:
    context.engine.submit(a_request(prompt, **options), owner_name({COOKIE: token}))


def test_a_new_page_gets_everything_at_once_and_then_what_changes(context, close_gate):
    gate = close_gate("a held square")

    def is_shown(news: dict) -> bool:
        if found := in_queue("a held square")(news):
            gate.open()
        return found

    act, is_finished = (lambda: submit(context, ANNA, "a held square")), in_queue('data-state="finished"')
    first, came, _ = told(context, ANNA, in_queue("The queue is empty"), is_shown, is_finished, act=act)
    assert set(first["parts"]) == {"worker-status", "queue", "warm"} and came["count"] > first["count"]


@pytest.mark.bench
def test_a_change_is_told_within_half_a_second(context, close_gate):
    close_gate("a held square")
    submit(context, BEN, "a held square")
    began = time.time()
    (news,) = told(context, ANNA, in_queue("waiting square"), act=lambda: submit(context, ANNA, "a waiting square"))
    assert began <= news["since"] and time.time() - news["since"] < 0.5


def test_nobody_is_told_of_anothers_job(context, close_gate):
    close_gate("a secret of anna")
    submit(context, ANNA, "a secret of anna")
    submit(context, ANNA, "another secret of anna")
    assert told(context, ANNA, in_queue("another secret of anna"))
    news = told(context, BEN, in_queue("other visitor"))
    assert "anna" not in json.dumps(news)
    assert "anna" not in json.dumps(
        told(context, BEN, in_queue("a square of ben"), act=lambda: submit(context, BEN, "a square of ben"))
    )


def test_anothers_steps_are_no_reason_to_draw_a_view_again(context, close_gate):
    gate = close_gate("a held square", "step 1")
    submit(context, ANNA, "a held square", steps=4)
    gate.wait()
    before = context.engine.event_log.count_changes()
    busy, ready = (
        lambda news, state=state: f'data-state="{state}"' in news["parts"].get("worker-status", "") for state in ("busy", "ready")
    )
    first, later = told(context, BEN, busy, ready, act=gate.open)
    assert later["count"] == first["count"] and context.engine.event_log.count_changes() > before + 2


def test_a_change_outside_the_queue_lets_every_page_look_again(context):
    first, later = told(context, BEN, lambda news: True, lambda news: True, act=lambda: context.engine.count_change())
    assert later["count"] > first["count"] and later["parts"] == {}


def test_a_page_is_told_in_its_visitors_language(context):
    assert told(context, ANNA, in_queue("队列"), language="zh-CN")


def test_a_workers_state_is_told(context, close_gate):
    close_gate("a held square")
    assert told(
        context,
        ANNA,
        lambda news: 'data-state="busy"' in news["parts"].get("worker-status", ""),
        act=lambda: submit(context, BEN, "a held square"),
    )


def test_an_idle_page_is_told_nothing_but_that_the_studio_is_there(context, monkeypatch):
    monkeypatch.setattr(changes, "SILENCE_SECONDS", 0.2)

    async def first_lines() -> list[str]:
        request = SimpleNamespace(cookies={}, session_hash="x", headers={}, client=None)
        stream, lines = changes._event_stream(context, context.identify_caller(request), SharedWork()), []
        async for text in stream:
            lines.append(text)
            if len(lines) == 5:
                await stream.aclose()
                return lines

    _, first, *rest = asyncio.run(first_lines())
    assert first.startswith("data") and set(rest) == {"event: still\ndata: {}\n\n"}


def test_the_stream_ends_when_the_engine_does(context):
    async def listen() -> None:
        request = SimpleNamespace(cookies={}, session_hash="x", headers={}, client=None)
        async for text in changes._event_stream(context, context.identify_caller(request), SharedWork()):
            if text.startswith("data"):
                await asyncio.to_thread(context.engine.close)

    asyncio.run(asyncio.wait_for(listen(), 20))
