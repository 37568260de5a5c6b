"""Tests of a long queue: it is not read at each of hundreds of changes a second, and always shows the last change."""

import time
from itertools import count
from types import SimpleNamespace

import pytest

from tests.clock import is_within
from wan_ui.queue import queue_query
from wan_ui.queue.queue_query import QueueReader

READ_SECONDS = 0.05


@pytest.fixture
def context(monkeypatch):
    """Return a context whose engine changes at every read.

    Reading its queue is slow, and the queue names the change that it shows.
    """
    changes = count()
    now = SimpleNamespace(last=0)

    def change() -> int:
        now.last = next(changes)
        return now.last

    def read(context) -> int:
        time.sleep(READ_SECONDS)
        return now.last

    monkeypatch.setattr(queue_query, "_read_queue", read)
    return SimpleNamespace(engine=SimpleNamespace(event_log=SimpleNamespace(count_changes=change)), now=now)


def test_a_long_line_takes_a_fifth_of_the_time_at_most(context):
    lines, began = QueueReader(), time.monotonic()
    for _ in range(4):
        lines.read(context)
    assert time.monotonic() - began >= 3 * READ_SECONDS * (1 + queue_query.PAUSE_FACTOR)


def test_after_its_rest_the_line_shows_what_has_changed_meanwhile(context):
    lines = QueueReader()
    assert lines.read(context) == context.now.last
    assert lines.read(context) == context.now.last > 0


@pytest.mark.bench
def test_an_unchanged_line_is_not_read_again_at_once(context):
    lines = QueueReader()
    first = lines.read(context)
    context.engine.event_log.count_changes = lambda: first
    began = time.monotonic()
    assert lines.read(context) == first and is_within(time.monotonic() - began, READ_SECONDS)
