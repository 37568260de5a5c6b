"""The sandbox runs two calls at a time, and one call per visitor. No call waits without a limit, and a call ends when its
caller leaves.
"""

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
from backend.media.sandbox import LONG_SECONDS, PoolLimits, ProcessorBudget, Requester, SandboxCall, SandboxPool
from backend.settings import PROJECT_FOLDER
from tests.backend.media import sandbox_work as work

needs_filter = pytest.mark.skipif(
    subprocess.run([sys.executable, "-m", "backend.media.system_calls"], cwd=PROJECT_FOLDER).returncode != 0,
    reason="this kernel has no seccomp filters",
)
PATIENCE = 60.0  # seconds that a test waits for something to happen


@pytest.fixture
def sandboxes():
    """A factory of sandboxes. All are closed at the end."""
    made = []

    def make(**options) -> SandboxPool:
        made.append(SandboxPool(**options))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.close()


@pytest.fixture
def waiting(tmp_path):
    """Calls that wait until `waiting.let_go` runs, each with a file that reports its start."""
    return Waiting(tmp_path)


class Waiting:
    def __init__(self, folder: Path):
        self.folder, self.gate = folder, folder / "gate"

    def call(self, name: str, **options) -> SandboxCall:
        return SandboxCall(work=work.wait_for, arguments=(str(self.gate), str(self.folder / name)), **options)

    def begun(self, name: str) -> list[int]:
        """Return the ids of the call's processes after its start."""
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


def doubled(number: int) -> SandboxCall:
    return SandboxCall(work=work.double, arguments=(number,))


def test_it_gives_what_work_returns_and_what_goes_wrong(sandboxes):
    sandbox = sandboxes()
    assert sandbox.run(doubled(4)) == 8
    with pytest.raises(ImageError, match="must be a picture; choose another file"):
        sandbox.run(SandboxCall(work=work.refuse))
    with pytest.raises(RuntimeError, match="not JSON serializable"):
        sandbox.run(SandboxCall(work=work.answer_with_an_object))
    assert asyncio.run(sandbox.run_async(doubled(5))) == 10


def test_two_work_at_once_and_one_for_a_visitor_or_an_address(sandboxes, waiting):
    sandbox = sandboxes()
    people = {"a1": Requester(owner="a"), "a2": Requester(owner="a"), "b": Requester(owner="b", address="1.2.3.4")}
    with ThreadPoolExecutor(4) as visitors:
        first = visitors.submit(sandbox.run, waiting.call("a1"), people["a1"])
        waiting.begun("a1")
        second = visitors.submit(sandbox.run, waiting.call("a2"), people["a2"])
        assert sandbox.run(doubled(1), people["b"]) == 2, "somebody else is served while the visitor's second work waits"
        assert not (waiting.folder / "a2").exists()
        waiting.let_go()
        assert [first.result(PATIENCE), second.result(PATIENCE)] == ["done", "done"]


def test_clips_never_take_all_places(sandboxes, waiting):
    sandbox = sandboxes()
    with ThreadPoolExecutor(4) as visitors:
        clips = [visitors.submit(sandbox.run, waiting.call("one", seconds=LONG_SECONDS), Requester(owner="one"))]
        waiting.begun("one")
        clips.append(visitors.submit(sandbox.run, waiting.call("two", seconds=LONG_SECONDS), Requester(owner="two")))
        wait_until(lambda: len(sandbox._short._queue) == 1)
        assert sandbox.run(doubled(1), Requester(owner="three")) == 2
        assert not (waiting.folder / "two").exists()
        waiting.let_go()
        assert [clip.result(PATIENCE) for clip in clips] == ["done", "done"]


def test_a_visitor_has_a_few_requests_in_line_and_there_is_an_end_to_the_line(sandboxes, waiting):
    sandbox = sandboxes(at_once=1, waiting_of_visitor=2, waiting=3)
    with ThreadPoolExecutor(4) as visitors:
        visitors.submit(sandbox.run, waiting.call("first"), Requester(owner="a"))
        waiting.begun("first")
        line = [visitors.submit(sandbox.run, doubled(1), Requester(owner="a")) for _ in range(2)]
        wait_until(lambda: len(sandbox._short._queue) == 2)
        with pytest.raises(Busy, match="try again"):
            sandbox.run(doubled(1), Requester(owner="a"))
        line.append(visitors.submit(sandbox.run, doubled(1), Requester(owner="b")))
        wait_until(lambda: len(sandbox._short._queue) == 3)
        with pytest.raises(Busy):
            sandbox.run(doubled(1), Requester(owner="c"))
        waiting.let_go()
        assert [one.result(PATIENCE) for one in line] == [2, 2, 2]


def wait_until(is_so) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_who_waits_too_long_is_refused_with_a_thread_and_without(sandboxes, waiting):
    sandbox = sandboxes(at_once=1, patience_seconds=0.05)
    with ThreadPoolExecutor(1) as visitor:
        first = visitor.submit(sandbox.run, waiting.call("first"))
        waiting.begun("first")
        with pytest.raises(Busy, match="try again"):
            sandbox.run(doubled(1))
        with pytest.raises(Busy, match="try again"):
            asyncio.run(sandbox.run_async(doubled(1)))
        waiting.let_go()
        assert first.result(PATIENCE) == "done", "work that has begun is waited for"
    assert sandbox.run(doubled(2)) == 4


def test_a_hundred_wait_in_one_thread(sandboxes, waiting):
    sandbox = sandboxes(at_once=1, waiting=100)

    async def all_of_them() -> tuple[set[threading.Thread], list[int]]:
        before = set(threading.enumerate())  # threads of earlier tests may end meanwhile
        line = [asyncio.ensure_future(sandbox.run_async(doubled(number))) for number in range(100)]
        await asyncio.sleep(0)
        threads = set(threading.enumerate()) - before
        waiting.let_go()
        return threads, await asyncio.gather(*line)

    with ThreadPoolExecutor(1) as visitor:
        visitor.submit(sandbox.run, waiting.call("first"))
        waiting.begun("first")
        threads, results = asyncio.run(all_of_them())
    assert not threads and results == [2 * number for number in range(100)]


def test_a_caller_who_goes_takes_the_work_along(sandboxes, waiting):
    sandbox = sandboxes(at_once=1)

    async def run() -> list[int]:
        task = asyncio.ensure_future(sandbox.run_async(waiting.call("gone")))
        processes = await asyncio.to_thread(waiting.begun, "gone")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return processes

    for pid in asyncio.run(run()):
        wait_until_gone(pid)
    assert sandbox.run(doubled(3)) == 6, "another process has taken its place"


@pytest.mark.parametrize("has_more", [True, False], ids=["before an opening", "at the end"])
def test_steps_whose_caller_goes_while_they_move_are_closed_and_their_result_is_undone(sandboxes, has_more):
    sandbox, begun, gate, seen = sandboxes(at_once=1), threading.Event(), threading.Event(), []

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

    async def run() -> None:
        task = asyncio.ensure_future(sandbox.run_steps_async(steps(), undo=seen.append))
        await asyncio.to_thread(begun.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == []
        gate.set()
        await asyncio.to_thread(wait_until, lambda: seen)

    asyncio.run(run())
    assert seen == (["closed"] if has_more else ["the result"])


def test_work_that_takes_too_long_ends_with_all_that_it_has_started(sandboxes, waiting):
    sandbox = sandboxes(at_once=1)
    with pytest.raises(StudioError, match="takes too long or too much memory to open.*give a smaller"):
        sandbox.run(waiting.call("late", seconds=5.0))
    for pid in waiting.begun("late"):
        wait_until_gone(pid)
    assert sandbox.run(doubled(3)) == 6


def test_work_that_takes_too_much_memory_or_ends_its_process_is_refused(sandboxes):
    sandbox = sandboxes(at_once=1)
    with pytest.raises(StudioError, match="too much memory"):
        sandbox.run(SandboxCall(work=work.fill, arguments=(4000,)))
    with pytest.raises(StudioError, match="takes too long or too much memory"):
        sandbox.run(SandboxCall(work=work.end))
    assert sandbox.run(doubled(3)) == 6


def test_closing_ends_what_is_done_and_takes_nothing_more(sandboxes, waiting):
    sandbox = sandboxes(at_once=1)
    with ThreadPoolExecutor(2) as visitors:
        first = visitors.submit(sandbox.run, waiting.call("first"))
        processes = waiting.begun("first")
        second = visitors.submit(sandbox.run, doubled(1))
        wait_until(lambda: len(sandbox._short._queue) == 1)
        sandbox.close()
        with pytest.raises(StudioError):
            first.result(PATIENCE)
        with pytest.raises(Busy):
            second.result(PATIENCE)
    for pid in processes:
        wait_until_gone(pid)
    with pytest.raises(Busy):
        sandbox.run(doubled(1))


def test_short_work_never_waits_behind_long_work_and_long_work_of_others_waits(sandboxes, waiting):
    sandbox = sandboxes()
    with ThreadPoolExecutor(4) as visitors:
        names = ("export", "film")
        tasks = [visitors.submit(sandbox.run, waiting.call(name, task=name), Requester(owner=name)) for name in names]
        wait_until(lambda: [len(sandbox.tasks(name)) for name in names] == [1, 1])
        clip = visitors.submit(sandbox.run, waiting.call("clip", seconds=LONG_SECONDS), Requester(owner="export"))
        waiting.begun("clip")
        assert sandbox.run(doubled(1), Requester(owner="somebody")) == 2
        shares = [sandbox.tasks(name)[0].share for name in names]
        assert sorted(share is None for share in shares) == [False, True], "one runs, the other waits"
        waiting.let_go()
        assert [one.result(PATIENCE) for one in (*tasks, clip)] == ["done"] * 3
    assert sandbox.tasks("export") == [] == sandbox.tasks("film")


def test_the_owner_sees_progress_and_stops_long_work_that_runs_or_waits(sandboxes, waiting):
    sandbox, owner = sandboxes(), Requester(owner="ann")
    with ThreadPoolExecutor(2) as visitors:
        names = (str(waiting.gate), str(waiting.folder / "halfway"))
        call = SandboxCall(work=work.report_half_and_wait, arguments=names, task="export")
        running = visitors.submit(sandbox.run, call, owner)
        wait_until(lambda: [task.share for task in sandbox.tasks("ann")] == [0.5])
        waits = visitors.submit(sandbox.run, waiting.call("second", task="film"), owner)
        wait_until(lambda: len(sandbox.tasks("ann")) == 2)
        pids = waiting.begun("halfway")
        assert [task.kind for task in sandbox.tasks("ann")] == ["export", "film"] and sandbox.tasks("bob") == []
        for task in sandbox.tasks("ann"):
            assert not sandbox.stop_task(task.id, "bob")
        for task in reversed(sandbox.tasks("ann")):
            assert sandbox.stop_task(task.id, "ann")
        for one in (running, waits):
            with pytest.raises(StudioError, match="was stopped"):
                one.result(PATIENCE)
    for pid in pids:
        wait_until_gone(pid)
    assert not (waiting.folder / "second").exists()


def test_long_work_ends_at_its_processor_time(sandboxes):
    sandbox = sandboxes()
    with pytest.raises(StudioError, match="may use 1 s of processor time and needs more"):
        sandbox.run(
            SandboxCall(work=work.burn, arguments=(60.0,), seconds=PATIENCE, task="export", processor_seconds=1.0),
            Requester(owner="a"),
        )
    assert sandbox.run(SandboxCall(work=work.double, arguments=(2,), task="export"), Requester(owner="a")) == 4


def test_a_visitor_who_has_used_the_hours_processor_time_is_told_when_to_come_again(sandboxes):
    sandbox, call = (
        sandboxes(budget=ProcessorBudget(of_visitor=1.0)),
        SandboxCall(work=work.double, arguments=(2,), task="export"),
    )
    assert sandbox.run(call, Requester(owner="a")) == 4, "each piece counts for a second at least"
    with pytest.raises(Busy, match="try again in 60 min") as refused:
        sandbox.run(call, Requester(owner="a"))
    assert 3000 < refused.value.retry_seconds <= 3600
    assert sandbox.run(call, Requester(owner="b")) == 4 and sandbox.run(call, Requester(owner="a", has_budget=False)) == 4
    assert sandbox.run(doubled(2), Requester(owner="a")) == 4, "short work is not counted"


def test_few_pieces_of_long_work_wait(sandboxes, waiting):
    few = PoolLimits(at_once=1, waiting=2, waiting_of_visitor=1, waiting_of_address=2, patience_seconds=PATIENCE)
    sandbox = sandboxes(tasks=few)
    with ThreadPoolExecutor(4) as visitors:
        visitors.submit(sandbox.run, waiting.call("first", task="film"), Requester(owner="a"))
        waiting.begun("first")
        visitors.submit(sandbox.run, waiting.call("second", task="film"), Requester(owner="a"))
        wait_until(lambda: len(sandbox.tasks("a")) == 2)
        with pytest.raises(Busy):
            sandbox.run(waiting.call("third", task="film"), Requester(owner="a"))
        waiting.let_go()


@needs_filter
def test_work_reaches_no_network_and_no_other_process(sandboxes):
    sandbox = sandboxes()
    assert sandbox.run(SandboxCall(work=work.connect)) == "PermissionError"
    assert sandbox.run(SandboxCall(work=work.trace, arguments=(os.getpid(),))) == errno.EPERM
    assert sandbox.run(SandboxCall(work=work.connect_in_a_child)) == "PermissionError", "what it starts has the filter too"


def test_a_process_whose_studio_is_gone_ends_in_the_middle_of_its_work(waiting):
    """A kill of the server leaves its child processes without a message."""
    from backend.media.sandbox import _Process

    process = _Process(())
    with ThreadPoolExecutor(1) as visitor:
        visitor.submit(process.execute, waiting.call("orphan"))
        pids = waiting.begun("orphan")
        process._process.stdin.close()
        for pid in pids:
            wait_until_gone(pid)
    process.kill()
