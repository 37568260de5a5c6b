"""Limit an amount, of any unit, that each owner, each network address and all owners together use within an hour."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

HOUR_SECONDS = 3600.0


@dataclass(frozen=True)
class _Use:
    moment: float
    amount: float
    owner: str
    address: str


class HourlyBudget:
    """The limits and the uses of the last hour. An empty owner and an empty address have no limits of their own.

    The methods may be called from any thread.
    """

    def __init__(self, of_owner: float, of_address: float, in_all: float, read_clock: Callable[[], float] = time.monotonic):
        self._of_owner, self._of_address, self._in_all = of_owner, of_address, in_all
        self._read_clock = read_clock
        self._uses: deque[_Use] = deque()
        self._lock = threading.Lock()

    def remaining(self, owner: str, address: str) -> float:
        """Return the amount that the owner may still use at this address. The amount is negative if a limit is exceeded."""
        with self._lock:
            return min(limit - sum(use.amount for use in uses) for limit, uses in self._applicable_limits(owner, address))

    def add(self, owner: str, address: str, amount: float) -> None:
        """Record that the owner used this amount, even if it exceeds the remaining amount."""
        with self._lock:
            self._uses.append(_Use(self._read_clock(), amount, owner, address))

    def wait_seconds(self, owner: str, address: str) -> float:
        """Return the seconds until the remaining amount is positive, 0 if it is positive now."""
        with self._lock:
            waits = [0.0]
            for limit, uses in self._applicable_limits(owner, address):
                used, expired = sum(use.amount for use in uses), None
                for use in uses:
                    if used < limit:
                        break
                    used, expired = used - use.amount, use
                if expired is not None:
                    waits.append(expired.moment + HOUR_SECONDS - self._read_clock())
            return max(waits)

    def _applicable_limits(self, owner: str, address: str) -> list[tuple[float, list[_Use]]]:
        """Forget uses older than an hour. Return (limit, uses) for each limit that applies to this owner and address."""
        oldest = self._read_clock() - HOUR_SECONDS
        while self._uses and self._uses[0].moment < oldest:
            self._uses.popleft()
        uses = [(self._in_all, list(self._uses))]
        if owner:
            uses.append((self._of_owner, [use for use in self._uses if use.owner == owner]))
        if address:
            uses.append((self._of_address, [use for use in self._uses if use.address == address]))
        return uses
