"""Open connections: how many there may be, and how long one may be silent.

uvicorn waits for ever for the first request of a connection and for the rest of a half-sent one, so a thousand of them would use
up the file descriptors that the server may open. Bodies that come slowly are ended in `body_limit`.
"""

import asyncio
import resource
from itertools import chain
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, h11

from wan_ui.gateway.limits import OPEN_REQUESTS

HEAD_SECONDS = 15.0  # for a request's first line and its headers
KEPT_SECONDS = 75.0  # for the next request; longer than clients keep theirs (httpx: 5, uvicorn's own), or one is sent as we close
UNREAD_SECONDS = 120.0  # for a caller who does not read the answer; a paused player asks again from where it was
MOST_CONNECTIONS = OPEN_REQUESTS.in_all
_DESCRIPTORS_KEPT = 200  # for the store, videos, pictures, the workers' pipes


def most_connections() -> int:
    """How many connections may be open at once: as many as leave descriptors for everything else."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if limit == resource.RLIM_INFINITY else max(50, min(MOST_CONNECTIONS, limit - _DESCRIPTORS_KEPT))


class LimitedConnection(H11Protocol):
    """A connection that ends if no whole request comes in time, and makes room for a new one if there are too many."""

    _head_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.timeout_keep_alive = KEPT_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begins to wait for the first request."""
        if len(self.connections) >= most_connections():
            open_ones = [one for one in self.connections if isinstance(one, H11Protocol)]
            idle = next(chain(filter(_is_idle, open_ones), filter(_is_sending, open_ones)), None)
            if idle is None:
                transport.abort()
                return
            idle.transport.abort()
            self.connections.discard(idle)
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Takes a piece of a request."""
        if self.transport is None:  # turned away
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._head_timer is None:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the clocks."""
        self._stop_waiting()
        if self._unread_timer:
            self._unread_timer.cancel()
        if self.transport is not None:
            super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The caller does not read what was sent."""
        super().pause_writing()
        self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """The caller reads on."""
        if self._unread_timer:
            self._unread_timer.cancel()
        super().resume_writing()

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._end_if_idle)

    def _stop_waiting(self) -> None:
        if self._head_timer:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_if_idle(self) -> None:
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.abort()


def _is_idle(connection: H11Protocol) -> bool:
    """Whether no request is being answered."""
    return connection.cycle is None or connection.cycle.response_complete


def _is_sending(connection: H11Protocol) -> bool:
    """Whether its caller has not sent the whole request yet."""
    return connection.conn.their_state is h11.SEND_BODY
