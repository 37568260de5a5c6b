"""Two at a time, the rest in line, and nobody waits for ever."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from backend.errors import Busy, ImageError
from backend.media.decoding import Decoding


@pytest.fixture
def gate():
    """Work that waits for this event; set at the end, so that no thread stays behind."""
    gate = threading.Event()
    yield gate
    gate.set()


def test_no_more_than_two_run_at_once():
    running, most, lock = 0, [], threading.Lock()
    together = threading.Barrier(2, timeout=10)  # each waits for another, so it takes two

    def work(number: int) -> int:
        nonlocal running
        with lock:
            running += 1
            most.append(running)
        together.wait()
        with lock:
            running -= 1
        return number

    decoding = Decoding()
    with ThreadPoolExecutor(12) as visitors:
        assert sorted(visitors.map(lambda number: decoding.run(work, number), range(12))) == list(range(12))
    assert max(most) == 2


def test_what_goes_wrong_reaches_the_caller():
    def refuse() -> None:
        raise ImageError("image", "must be a picture", "choose another file")

    with pytest.raises(ImageError, match="must be a picture"):
        Decoding().run(refuse)


def test_who_waits_too_long_is_refused_and_the_work_is_never_done(gate):
    decoding, done, begun = Decoding(at_once=1, patience_seconds=0.05), [], threading.Event()
    with ThreadPoolExecutor(1) as visitor:
        first = visitor.submit(decoding.run, lambda: (begun.set(), gate.wait(10), "done")[-1])
        begun.wait(10)
        with pytest.raises(Busy, match="try again"):
            decoding.run(done.append, 1)
        gate.set()
        assert first.result() == "done"  # work that has begun is waited for
    assert decoding.run(lambda: 2) == 2 and done == []


def test_after_closing_nothing_is_taken():
    decoding = Decoding()
    decoding.close()
    with pytest.raises(Busy):
        decoding.run(print)
