"""Limit open streams and uploads. They can last long, and without a limit they would use all connections."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from wan_ui.gateway.access import bearer_key
from wan_ui.gateway.limits import STREAMS, Limit
from wan_ui.gateway.refusals import refusal_response
from wan_ui.gateway.rules import API, UPLOAD, VIDEOS
from wan_ui.gateway.visitors import has_cookie, owner_name, sender_address
from wan_ui.i18n.languages import texts_for

_ENDLESS = (
    *("/studio/changes", "/mcp", UPLOAD, VIDEOS, f"{VIDEOS}/[^/]+/events"),
    f"{API}/(queue/data|upload_progress|heartbeat/[^/]+|call/[^/]+/[^/]+)",
)


class StreamLimit:
    """ASGI middleware that refuses streams and uploads above the limits per visitor, per address and in total (429).

    A caller without a cookie and without a key is limited only by address. `more` are regular expressions for further stream
    paths of the views.
    """

    def __init__(self, app: ASGIApp, more: Sequence[str] = (), limit: Limit = STREAMS) -> None:
        self.app, self.limit = app, limit
        self._endless = re.compile("|".join((*_ENDLESS, *more)))
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._endless.fullmatch(scope["path"].rstrip("/")):
            await self.app(scope, receive, send)
            return
        who, address = sender_name(scope), f"address {sender_address(scope)}"
        # The address is empty if this machine sent the request, perhaps as a proxy for many visitors. The limit per address then
        # applies only to callers without a cookie and without a key.
        near = self._open[address] if address != "address " or who == address else 0
        of_visitor = self.limit.of_address if who == address else self.limit.of_visitor
        if self._open[who] >= of_visitor or near >= self.limit.of_address or self._open["all"] >= self.limit.in_all:
            text = texts_for(Headers(scope=scope)).too_many_streams
            refusal = refusal_response(scope, HTTPStatus.TOO_MANY_REQUESTS, text, {"retry-after": "5"})
            await refusal(scope, receive, send)
            return
        counted = {who, address, "all"}
        self._open.update(counted)
        try:
            await self.app(scope, receive, send)
        finally:
            self._open.subtract(counted)
            self._open += Counter()  # removes all counts of 0


def sender_name(scope: Scope) -> str:
    """Return a name for the sender: from the key, else from the cookie, else from the network address."""
    if key := bearer_key(Headers(scope=scope)):
        return f"key {hashlib.sha256(key.encode()).hexdigest()}"
    cookies = dict(Request(scope).cookies)
    return owner_name(cookies) if has_cookie(cookies) else f"address {sender_address(scope)}"
