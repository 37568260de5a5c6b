"""Refuses requests whose body is too large or comes too slowly, before any of it is parsed and before anybody has to log in.

Gradio reads and parses a whole body before it checks that the caller has logged in, and limits only uploads, which it keeps
on the disk.
"""

import asyncio
import time
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wan_ui.gateway.limits import JSON_BYTES
from wan_ui.gateway.refusals import refused
from wan_ui.gateway.rules import UPLOAD, VIDEOS
from wan_ui.i18n.languages import texts_for

# The page's largest request is a file of own presets, which form/panel.js cuts to 320,000 characters: with Chinese at three bytes
# a character, and the form sent with it, 954 KB (measured in Chromium); 199 ordinary presets are 279 KB, and the form with
# a picture and both prompts as long as a model can read is 33 KB.
MOST_BYTES = JSON_BYTES.of_visitor
LONGEST_TEXT = 50_000  # characters of a field: a request has at most four text fields, so it stays below MOST_BYTES
BODY_SECONDS = 30.0  # for a whole body of MOST_BYTES: 33 KB/s
UPLOAD_PAUSE_SECONDS = 20.0  # between two pieces of an upload
SLOWEST_UPLOAD = 4_000  # bytes a second, after the first UPLOAD_PAUSE_SECONDS
_READ_ON = 10  # times the limit are read, but not kept: a caller who is cut off while sending never sees the answer


class BodyLimit:
    """ASGI middleware: passes on each request with its whole body in one piece, or answers 413 or 408.

    Uploads, also what is sent to `/v1/videos`, are passed on as they come; one that comes too slowly looks to the application as
    if its sender had hung up.
    """

    def __init__(self, app: ASGIApp, most_bytes: int = MOST_BYTES, seconds: float = BODY_SECONDS) -> None:
        self.app, self.most_bytes, self.seconds = app, most_bytes, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif scope["path"] in (UPLOAD, VIDEOS):
            await self.app(scope, _steady(receive), send)
        else:
            await self._limited(scope, receive, send)

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self.seconds):
                message = await self._whole(scope, receive)
        except TimeoutError:
            await self._refusal(scope, HTTPStatus.REQUEST_TIMEOUT)(scope, receive, send)
            return
        if message is None:
            await self._refusal(scope, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)(scope, receive, send)
        else:
            await self.app(scope, first(message, receive), send)

    async def _whole(self, scope: Scope, receive: Receive) -> Message | None:
        """The body as one message, or that the caller is gone; None if it is too large. Counts the bytes as they come."""
        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self.most_bytes * _READ_ON:
            return None
        size, body, has_more = 0, bytearray(), True
        while has_more and size <= self.most_bytes * _READ_ON:
            message = await receive()
            if message["type"] != "http.request":
                return message
            size += len(message.get("body", b""))
            body += message.get("body", b"") if size <= self.most_bytes else b""
            has_more = message.get("more_body", False)
        return {"type": "http.request", "body": bytes(body), "more_body": False} if size <= self.most_bytes else None

    def _refusal(self, scope: Scope, status: HTTPStatus) -> JSONResponse:
        """The answer; the connection ends with it."""
        texts = texts_for(Headers(scope=scope))
        is_slow = status == HTTPStatus.REQUEST_TIMEOUT
        text = texts.body_slow if is_slow else texts.body_refused.format(kilobytes=self.most_bytes // 1000)
        return refused(scope, status, text, {"connection": "close"})


def first(message: Message, receive: Receive) -> Receive:
    """Gives this message first, then those that `receive` gives."""
    left = [message]

    async def give() -> Message:
        return left.pop() if left else await receive()

    return give


def _steady(receive: Receive) -> Receive:
    """As `receive`, until the sender pauses for too long or is too slow; then the sender counts as gone."""
    began, size, is_over = time.monotonic(), 0, False

    async def give() -> Message:
        nonlocal size, is_over
        if is_over:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), UPLOAD_PAUSE_SECONDS)
        except TimeoutError:
            return {"type": "http.disconnect"}
        size += len(message.get("body", b""))
        is_over = not message.get("more_body", False)
        late = time.monotonic() - began - UPLOAD_PAUSE_SECONDS
        return {"type": "http.disconnect"} if late > 0 and size < late * SLOWEST_UPLOAD else message

    return give
