"""Two at a time, one for a visitor, nobody waits for ever, and whatever is done ends when nobody wants it any more."""

import asyncio
import errno
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from backend.errors import Busy, ImageError, StudioError
from backend.media.sandbox import LONG_SECONDS, Cage, For, Opening, PoolLimits, ProcessorBudget
from backend.settings import PROJECT_FOLDER
from tests.backend.media import sandbox_work as work

needs_filter = pytest.mark.skipif(
    subprocess.run([sys.executable, "-m", "backend.media.system_calls"], cwd=PROJECT_FOLDER).returncode != 0,
    reason="this kernel has no seccomp filters",
)
PATIENCE = 60.0  # seconds that a test waits for something to happen


@pytest.fixture
def cages():
    """Makes cages; all are closed at the end."""
    made = []

    def make(**options) -> Cage:
        made.append(Cage(**options))
        return made[-1]

    yield make
    for cage in made:
        cage.close()


@pytest.fixture
def waiting(tmp_path):
    """Makes work that waits until `waiting.let_go` is called, with the place where it says that it has begun."""
    return Waiting(tmp_path)


class Waiting:
    def __init__(self, folder: Path):
        self.folder, self.gate = folder, folder / "gate"

    def opening(self, name: str, **options) -> Opening:
        return Opening(work=work.wait_for, arguments=(str(self.gate), str(self.folder / name)), **options)

    def begun(self, name: str) -> list[int]:
        """The ids of the work's processes, once it has begun."""
        until = time.monotonic() + PATIENCE
        while not (self.folder / name).exists():
            assert time.monotonic() < until, f"{name} has not begun"
            time.sleep(0.01)
        return [int(word) for word in (self.folder / name).read_text().split()]

    def let_go(self) -> None:
        self.gate.touch()


def wait_until_gone(pid: int) -> None:
    until = time.monotonic() + PATIENCE
    while is_alive(pid):
        assert time.monotonic() < until, f"process {pid} is still there"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def doubled(number: int) -> Opening:
    return Opening(work=work.double, arguments=(number,))


def test_it_gives_what_work_returns_and_what_goes_wrong(cages):
    cage = cages()
    assert cage.run(doubled(4)) == 8
    with pytest.raises(ImageError, match="must be a picture; choose another file"):
        cage.run(Opening(work=work.refuse))
    with pytest.raises(RuntimeError, match="not JSON serializable"):
        cage.run(Opening(work=work.answer_with_an_object))
    assert asyncio.run(cage.opened(doubled(5))) == 10


def test_two_work_at_once_and_one_for_a_visitor_or_an_address(cages, waiting):
    cage = cages()
    people = {"a1": For(owner="a"), "a2": For(owner="a"), "b": For(owner="b", address="1.2.3.4")}
    with ThreadPoolExecutor(4) as visitors:
        first = visitors.submit(cage.run, waiting.opening("a1"), people["a1"])
        waiting.begun("a1")
        second = visitors.submit(cage.run, waiting.opening("a2"), people["a2"])
        assert cage.run(doubled(1), people["b"]) == 2, "somebody else is served while the visitor's second work waits"
        assert not (waiting.folder / "a2").exists()
        waiting.let_go()
        assert [first.result(PATIENCE), second.result(PATIENCE)] == ["done", "done"]


def test_clips_never_take_all_places(cages, waiting):
    cage = cages()
    with ThreadPoolExecutor(4) as visitors:
        clips = [visitors.submit(cage.run, waiting.opening("one", seconds=LONG_SECONDS), For(owner="one"))]
        waiting.begun("one")
        clips.append(visitors.submit(cage.run, waiting.opening("two", seconds=LONG_SECONDS), For(owner="two")))
        until(lambda: len(cage._short._line) == 1)
        assert cage.run(doubled(1), For(owner="three")) == 2
        assert not (waiting.folder / "two").exists()
        waiting.let_go()
        assert [clip.result(PATIENCE) for clip in clips] == ["done", "done"]


def test_a_visitor_has_a_few_requests_in_line_and_there_is_an_end_to_the_line(cages, waiting):
    cage = cages(at_once=1, most_of_visitor=2, most_waiting=3)
    with ThreadPoolExecutor(4) as visitors:
        visitors.submit(cage.run, waiting.opening("first"), For(owner="a"))
        waiting.begun("first")
        line = [visitors.submit(cage.run, doubled(1), For(owner="a")) for _ in range(2)]
        until(lambda: len(cage._short._line) == 2)
        with pytest.raises(Busy, match="try again"):
            cage.run(doubled(1), For(owner="a"))
        line.append(visitors.submit(cage.run, doubled(1), For(owner="b")))
        until(lambda: len(cage._short._line) == 3)
        with pytest.raises(Busy):
            cage.run(doubled(1), For(owner="c"))
        waiting.let_go()
        assert [one.result(PATIENCE) for one in line] == [2, 2, 2]


def until(is_so) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_who_waits_too_long_is_refused_with_a_thread_and_without(cages, waiting):
    cage = cages(at_once=1, patience_seconds=0.05)
    with ThreadPoolExecutor(1) as visitor:
        first = visitor.submit(cage.run, waiting.opening("first"))
        waiting.begun("first")
        with pytest.raises(Busy, match="try again"):
            cage.run(doubled(1))
        with pytest.raises(Busy, match="try again"):
            asyncio.run(cage.opened(doubled(1)))
        waiting.let_go()
        assert first.result(PATIENCE) == "done", "work that has begun is waited for"
    assert cage.run(doubled(2)) == 4


def test_a_hundred_wait_in_one_thread(cages, waiting):
    cage = cages(at_once=1, most_waiting=100)

    async def all_of_them() -> tuple[int, list[int]]:
        before = threading.active_count()
        line = [asyncio.ensure_future(cage.opened(doubled(number))) for number in range(100)]
        await asyncio.sleep(0)
        threads = threading.active_count() - before
        waiting.let_go()
        return threads, await asyncio.gather(*line)

    with ThreadPoolExecutor(1) as visitor:
        visitor.submit(cage.run, waiting.opening("first"))
        waiting.begun("first")
        threads, results = asyncio.run(all_of_them())
    assert threads == 0 and results == [2 * number for number in range(100)]


def test_a_caller_who_goes_takes_the_work_along(cages, waiting):
    cage = cages(at_once=1)

    async def go() -> list[int]:
        task = asyncio.ensure_future(cage.opened(waiting.opening("gone")))
        processes = await asyncio.to_thread(waiting.begun, "gone")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return processes

    for pid in asyncio.run(go()):
        wait_until_gone(pid)
    assert cage.run(doubled(3)) == 6, "another process has taken its place"


@pytest.mark.parametrize("has_more", [True, False], ids=["before an opening", "at the end"])
def test_steps_whose_caller_goes_while_they_move_are_closed_and_their_result_is_undone(cages, has_more):
    cage, begun, gate, seen = cages(at_once=1), threading.Event(), threading.Event(), []

    def steps():
        begun.set()
        gate.wait(PATIENCE)
        try:
            if has_more:
                yield doubled(3)
                seen.append("went on")
        except GeneratorExit:
            seen.append("closed")
            raise
        return "the result"

    async def go() -> None:
        task = asyncio.ensure_future(cage.followed(steps(), undo=seen.append))
        await asyncio.to_thread(begun.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == []
        gate.set()
        await asyncio.to_thread(until, lambda: seen)

    asyncio.run(go())
    assert seen == (["closed"] if has_more else ["the result"])


def test_work_that_takes_too_long_ends_with_all_that_it_has_started(cages, waiting):
    cage = cages(at_once=1)
    with pytest.raises(StudioError, match="takes too long or too much memory to open.*give a smaller"):
        cage.run(waiting.opening("late", seconds=5.0))
    for pid in waiting.begun("late"):
        wait_until_gone(pid)
    assert cage.run(doubled(3)) == 6


def test_work_that_takes_too_much_memory_or_ends_its_process_is_refused(cages):
    cage = cages(at_once=1)
    with pytest.raises(StudioError, match="too much memory"):
        cage.run(Opening(work=work.fill, arguments=(4000,)))
    with pytest.raises(StudioError, match="takes too long or too much memory"):
        cage.run(Opening(work=work.end))
    assert cage.run(doubled(3)) == 6


def test_closing_ends_what_is_done_and_takes_nothing_more(cages, waiting):
    cage = cages(at_once=1)
    with ThreadPoolExecutor(2) as visitors:
        first = visitors.submit(cage.run, waiting.opening("first"))
        processes = waiting.begun("first")
        second = visitors.submit(cage.run, doubled(1))
        until(lambda: len(cage._short._line) == 1)
        cage.close()
        with pytest.raises(StudioError):
            first.result(PATIENCE)
        with pytest.raises(Busy):
            second.result(PATIENCE)
    for pid in processes:
        wait_until_gone(pid)
    with pytest.raises(Busy):
        cage.run(doubled(1))


def test_short_work_never_waits_behind_long_work_and_long_work_of_others_waits(cages, waiting):
    cage = cages()
    with ThreadPoolExecutor(4) as visitors:
        names = ("export", "film")
        tasks = [visitors.submit(cage.run, waiting.opening(name, task=name), For(owner=name)) for name in names]
        until(lambda: [len(cage.tasks(name)) for name in names] == [1, 1])
        clip = visitors.submit(cage.run, waiting.opening("clip", seconds=LONG_SECONDS), For(owner="export"))
        waiting.begun("clip")
        assert cage.run(doubled(1), For(owner="somebody")) == 2
        shares = [cage.tasks(name)[0].share for name in names]
        assert sorted(share is None for share in shares) == [False, True], "one runs, the other waits"
        waiting.let_go()
        assert [one.result(PATIENCE) for one in (*tasks, clip)] == ["done"] * 3
    assert cage.tasks("export") == [] == cage.tasks("film")


def test_the_owner_sees_progress_and_stops_long_work_that_runs_or_waits(cages, waiting):
    cage, owner = cages(), For(owner="ann")
    with ThreadPoolExecutor(2) as visitors:
        names = (str(waiting.gate), str(waiting.folder / "halfway"))
        opening = Opening(work=work.report_half_and_wait, arguments=names, task="export")
        running = visitors.submit(cage.run, opening, owner)
        until(lambda: [task.share for task in cage.tasks("ann")] == [0.5])
        waits = visitors.submit(cage.run, waiting.opening("second", task="film"), owner)
        until(lambda: len(cage.tasks("ann")) == 2)
        pids = waiting.begun("halfway")
        assert [task.kind for task in cage.tasks("ann")] == ["export", "film"] and cage.tasks("bob") == []
        for task in cage.tasks("ann"):
            assert not cage.stop_task(task.id, "bob")
        for task in reversed(cage.tasks("ann")):
            assert cage.stop_task(task.id, "ann")
        for one in (running, waits):
            with pytest.raises(StudioError, match="was stopped"):
                one.result(PATIENCE)
    for pid in pids:
        wait_until_gone(pid)
    assert not (waiting.folder / "second").exists()


def test_long_work_ends_at_its_processor_time(cages):
    cage = cages()
    with pytest.raises(StudioError, match="may use 1 s of processor time and needs more"):
        cage.run(
            Opening(work=work.burn, arguments=(60.0,), seconds=PATIENCE, task="export", processor_seconds=1.0), For(owner="a")
        )
    assert cage.run(Opening(work=work.double, arguments=(2,), task="export"), For(owner="a")) == 4


def test_a_visitor_who_has_used_the_hours_processor_time_is_told_when_to_come_again(cages):
    cage, opening = cages(budget=ProcessorBudget(of_visitor=1.0)), Opening(work=work.double, arguments=(2,), task="export")
    assert cage.run(opening, For(owner="a")) == 4, "each piece counts for a second at least"
    with pytest.raises(Busy, match="try again in 60 min") as refused:
        cage.run(opening, For(owner="a"))
    assert 3000 < refused.value.retry_seconds <= 3600
    assert cage.run(opening, For(owner="b")) == 4 and cage.run(opening, For(owner="a", has_budget=False)) == 4
    assert cage.run(doubled(2), For(owner="a")) == 4, "short work is not counted"


def test_few_pieces_of_long_work_wait(cages, waiting):
    few = PoolLimits(at_once=1, waiting=2, waiting_of_visitor=1, waiting_of_address=2, patience_seconds=PATIENCE)
    cage = cages(tasks=few)
    with ThreadPoolExecutor(4) as visitors:
        visitors.submit(cage.run, waiting.opening("first", task="film"), For(owner="a"))
        waiting.begun("first")
        visitors.submit(cage.run, waiting.opening("second", task="film"), For(owner="a"))
        until(lambda: len(cage.tasks("a")) == 2)
        with pytest.raises(Busy):
            cage.run(waiting.opening("third", task="film"), For(owner="a"))
        waiting.let_go()


@needs_filter
def test_work_reaches_no_network_and_no_other_process(cages):
    cage = cages()
    assert cage.run(Opening(work=work.connect)) == "PermissionError"
    assert cage.run(Opening(work=work.trace, arguments=(os.getpid(),))) == errno.EPERM
    assert cage.run(Opening(work=work.connect_in_a_child)) == "PermissionError", "what it starts has the filter too"


def test_a_process_whose_studio_is_gone_ends_in_the_middle_of_its_work(waiting):
    """As after a kill of the server, which cannot say goodbye."""
    from backend.media.sandbox import _Process

    process = _Process(())
    with ThreadPoolExecutor(1) as visitor:
        visitor.submit(process.do, waiting.opening("orphan"))
        pids = waiting.begun("orphan")
        process._process.stdin.close()
        for pid in pids:
            wait_until_gone(pid)
    process.kill()
