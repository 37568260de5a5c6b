"""Limits for open connections: their number, and how long a connection may be silent.

uvicorn waits without a limit for the first request of a connection, and for the missing part of a request. A thousand such
connections would use up the server's file descriptors. `body_limit` ends slow bodies.
"""

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, h11

from wan_ui.gateway.limits import OPEN_REQUESTS

HEAD_SECONDS = 15.0  # the longest wait for a request's first line and headers
# The longest wait for the next request on a connection. Clients must close an idle connection earlier (httpx after 5 s).
# Otherwise a request could arrive while the server closes the connection.
KEPT_SECONDS = 75.0
UNREAD_SECONDS = 120.0  # longest pause in which a caller does not read the response; a paused video player sends a new request
MOST_CONNECTIONS = OPEN_REQUESTS.in_all
_DESCRIPTORS_KEPT = 200  # file descriptors for the store, videos, images and the workers' pipes


def most_connections() -> int:
    """Return the largest number of open connections. It leaves file descriptors for other uses, such as files and pipes."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if limit == resource.RLIM_INFINITY else max(50, min(MOST_CONNECTIONS, limit - _DESCRIPTORS_KEPT))


class LimitedConnection(H11Protocol):
    """An HTTP connection that closes if a request's first line and headers do not arrive in time.

    If the number of connections has reached the limit, a new connection replaces one that is idle, or else one that is still
    sending a request. If no such connection exists, the new connection is refused.
    """

    _head_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.timeout_keep_alive = KEPT_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:
        if len(self.connections) >= most_connections():
            others = [other for other in self.connections if isinstance(other, H11Protocol)]
            idle = [other for other in others if other.cycle is None or other.cycle.response_complete]
            sending = [other for other in others if other.conn.their_state is h11.SEND_BODY]
            if not idle and not sending:  # no connection can be closed
                transport.abort()
                return
            closed = (idle or sending)[0]
            closed.transport.abort()
            self.connections.discard(closed)
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._end_if_idle)

    def data_received(self, data: bytes) -> None:
        if self.transport is None:  # `connection_made` refused this connection
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._end_if_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._unread_timer:
            self._unread_timer.cancel()
        if self.transport is not None:
            super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)  # the caller does not read the response

    def resume_writing(self) -> None:
        if self._unread_timer:
            self._unread_timer.cancel()
        super().resume_writing()

    def _stop_waiting(self) -> None:
        if self._head_timer:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_if_idle(self) -> None:
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.abort()
