"""Tests that simultaneous equal calls share the work, and that no answer is older than its call."""

import asyncio
import threading

import pytest

from wan_ui.services.shared_work import SharedWork


def test_many_callers_share_two_calls_and_get_no_old_answer():
    gate, calls = threading.Event(), []

    def look() -> int:
        calls.append(len(calls) + 1)
        number = calls[-1]
        assert gate.wait(30)
        return number

    async def ask() -> tuple[int, list[int], int]:
        shared: SharedWork[str, int] = SharedWork()
        first = asyncio.create_task(shared.result("ann", look))
        while not calls:
            await asyncio.sleep(0.01)
        later = [asyncio.create_task(shared.result("ann", look)) for _ in range(20)]
        other = asyncio.create_task(shared.result("bob", lambda: 7))
        assert await other == 7, "one visitor's work does not hold another's"
        gate.set()
        return await first, list(await asyncio.gather(*later)), len(calls)

    assert asyncio.run(ask()) == (1, [2] * 20, 2)


def test_an_error_reaches_every_caller_and_the_next_call_runs():
    async def ask() -> int:
        shared: SharedWork[str, int] = SharedWork()
        answers = await asyncio.gather(*(shared.result("ann", lambda: 1 // 0) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(one, ZeroDivisionError) for one in answers)
        return await shared.result("ann", lambda: 5)

    assert asyncio.run(ask()) == 5
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
