"""Check how much one owner, one address and all callers may use within an hour."""

import pytest

from backend.budget import HOUR_SECONDS, HourlyBudget


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_each_limit_counts_and_an_hour_later_nothing_does(clock):
    budget = HourlyBudget(of_owner=10, of_address=15, in_all=20, read_clock=clock)
    budget.add("ann", "1.1.1.1", 8)
    assert budget.remaining("ann", "1.1.1.1") == 2 and budget.remaining("bob", "1.1.1.1") == 7
    assert budget.remaining("bob", "2.2.2.2") == 10 and budget.wait_seconds("ann", "1.1.1.1") == 0
    clock.now = 600.0
    budget.add("ann", "1.1.1.1", 5)
    assert budget.remaining("ann", "1.1.1.1") == -3 and budget.wait_seconds("ann", "1.1.1.1") == HOUR_SECONDS - 600
    clock.now = HOUR_SECONDS + 1
    assert budget.remaining("ann", "1.1.1.1") == 5 and budget.wait_seconds("ann", "1.1.1.1") == 0
    clock.now = HOUR_SECONDS + 601
    assert budget.remaining("ann", "1.1.1.1") == 10


def test_empty_names_count_in_all_only(clock):
    budget = HourlyBudget(of_owner=1, of_address=1, in_all=5, read_clock=clock)
    for _ in range(5):
        assert budget.remaining("", "") > 0
        budget.add("", "", 1)
    assert budget.remaining("", "") == 0
