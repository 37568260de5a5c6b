"""Limits answers that do not end by themselves, and uploads, which may take long: so that short requests always get in."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from wan_ui.gateway.access import bearer
from wan_ui.gateway.limits import STREAMS, Limit
from wan_ui.gateway.refusals import refused
from wan_ui.gateway.rules import API, UPLOAD, VIDEOS
from wan_ui.gateway.visitors import address_of, has_cookie, owner_of
from wan_ui.i18n.languages import texts_for

_ENDLESS = ("/studio/changes", "/mcp", UPLOAD, VIDEOS, f"{API}/(queue/data|upload_progress|heartbeat/[^/]+|call/[^/]+/[^/]+)")


class StreamLimit:
    """ASGI middleware: refuses streams above the limits of a visitor, of an address and of all (429). A caller with neither a
    cookie nor a key counts by address alone. `more` are patterns of streams' paths besides the studio's own."""

    def __init__(self, app: ASGIApp, more: Sequence[str] = (), limit: Limit = STREAMS) -> None:
        self.app, self.limit = app, limit
        self._endless = re.compile("|".join((*_ENDLESS, *more)))
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._endless.fullmatch(scope["path"].rstrip("/")):
            await self.app(scope, receive, send)
            return
        who, address = sender(scope), f"address {address_of(scope)}"
        if not self._has_room(who, address):
            texts = texts_for(Headers(scope=scope))
            await refused(scope, HTTPStatus.TOO_MANY_REQUESTS, texts.too_many_streams, {"retry-after": "5"})(scope, receive, send)
            return
        counted = {who, address, "all"}
        self._open.update(counted)
        try:
            await self.app(scope, receive, send)
        finally:
            self._open.subtract(counted)
            self._open += Counter()  # forgets those at 0

    def _has_room(self, who: str, address: str) -> bool:
        near = self._open[address] if address != "address " or who == address else 0  # this machine's stands for many people
        of_visitor = self.limit.of_address if who == address else self.limit.of_visitor
        return self._open[who] < of_visitor and near < self.limit.of_address and self._open["all"] < self.limit.in_all


def sender(scope: Scope) -> str:
    """A name for who sends this: by their key, by their cookie, else by their address."""
    if key := bearer(Headers(scope=scope)):
        return f"key {hashlib.sha256(key.encode()).hexdigest()}"
    cookies = dict(Request(scope).cookies)
    return owner_of(cookies) if has_cookie(cookies) else f"address {address_of(scope)}"
