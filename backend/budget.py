"""Limit an amount that each owner, each network address and all owners together use within an hour.

The caller chooses the unit of the amount.
"""

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
    """Limits the total amount that each owner, each address, and all owners together use within an hour.

    The limit of an owner does not apply to an empty owner. The limit of an address does not apply to an empty address.
    `read_clock` returns seconds. The methods may be called from any thread.
    """

    def __init__(self, of_owner: float, of_address: float, in_all: float, read_clock: Callable[[], float] = time.monotonic):
        self._of_owner, self._of_address, self._in_all = of_owner, of_address, in_all
        self._read_clock = read_clock
        self._uses: deque[_Use] = deque()
        self._lock = threading.Lock()

    def remaining(self, owner: str, address: str) -> float:
        """Return the amount that the owner may still use at this address. The amount is negative if a limit is exceeded."""
        with self._lock:
            self._forget_old()
            return min(limit - sum(use.amount for use in uses) for limit, uses in self._applicable_limits(owner, address))

    def add(self, owner: str, address: str, amount: float) -> None:
        """Record that the owner used this amount, even if it exceeds the remaining amount."""
        with self._lock:
            self._uses.append(_Use(self._read_clock(), amount, owner, address))

    def wait_seconds(self, owner: str, address: str) -> float:
        """Return the seconds until the remaining amount is positive, 0 if it is positive now."""
        with self._lock:
            self._forget_old()
            return max(self._wait_for(limit, uses) for limit, uses in self._applicable_limits(owner, address))

    def _wait_for(self, limit: float, uses: list[_Use]) -> float:
        used, expired = sum(use.amount for use in uses), None
        for use in uses:
            if used < limit:
                break
            used, expired = used - use.amount, use
        return 0.0 if expired is None else expired.moment + HOUR_SECONDS - self._read_clock()

    def _applicable_limits(self, owner: str, address: str) -> list[tuple[float, list[_Use]]]:
        """Return (limit, uses) for each limit that applies to this owner and address. A limit applies to the sum of its uses."""
        uses = [(self._in_all, list(self._uses))]
        if owner:
            uses.append((self._of_owner, [use for use in self._uses if use.owner == owner]))
        if address:
            uses.append((self._of_address, [use for use in self._uses if use.address == address]))
        return uses

    def _forget_old(self) -> None:
        oldest = self._read_clock() - HOUR_SECONDS
        while self._uses and self._uses[0].moment < oldest:
            self._uses.popleft()
