"""Reports the progress of long work: the code that does the work calls `report_share`."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
_SMALLEST_STEP = 0.01
_LISTENER: ContextVar[Callable[[float], None] | None] = ContextVar("progress_listener", default=None)


def report_share(share: float) -> None:
    """Report that this share of the work, from 0 to 1, is done."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(min(1.0, max(0.0, share)))


def report_progress(items: Iterable[Item], total: int) -> Iterator[Item]:
    """Yield the items, and report the share of `total` items that are done."""
    for number, item in enumerate(items, 1):
        yield item
        report_share(number / max(1, total))


@contextmanager
def progress_listener(listener: Callable[[float], None]) -> Generator[None]:
    """Call `listener` with the shares that are reported in this block, if they grow by 0.01."""
    last = 0.0

    def report_if_grown(share: float) -> None:
        nonlocal last
        if share >= last + _SMALLEST_STEP:
            last = share
            listener(share)

    token = _LISTENER.set(report_if_grown)
    try:
        yield
    finally:
        _LISTENER.reset(token)


@contextmanager
def progress_range(first: float, last: float) -> Generator[None]:
    """Convert shares that are reported in this block, from 0 to 1, to the part from `first` to `last` of the whole work."""
    outer = _LISTENER.get()
    token = _LISTENER.set(outer and (lambda share: outer(first + (last - first) * share)))
    try:
        yield
    finally:
        _LISTENER.reset(token)
