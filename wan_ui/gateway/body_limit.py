"""Refuse requests whose body is too large or arrives too slowly, before the body is parsed and before the login.

Gradio reads and parses a whole body before it checks the login. It limits only uploads, which it stores on disk.
"""

import asyncio
import time
from dataclasses import dataclass
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wan_ui.gateway.limits import JSON_BYTES
from wan_ui.gateway.refusals import refusal_response
from wan_ui.gateway.rules import UPLOAD, VIDEOS
from wan_ui.i18n.languages import texts_for

# The page's largest request imports a file of user presets, which form/panel.js cuts to 320,000 characters. With Chinese text
# (three bytes per character) and the form's values, this request has 954 KB (measured in Chromium). A file of 199 ordinary
# presets has 279 KB. An ordinary request, with the form's values, an image and two very long prompts, has 33 KB.
MOST_BYTES = JSON_BYTES.of_visitor
LONGEST_TEXT = 50_000  # characters in a text field; a request has at most four text fields, together below MOST_BYTES
BODY_SECONDS = 30.0  # the longest time for a whole body; a body of MOST_BYTES must arrive at 33 KB/s
UPLOAD_PAUSE_SECONDS = 20.0  # the longest pause between two pieces of an upload
SLOWEST_UPLOAD = 4_000  # smallest mean rate in bytes per second, after the first UPLOAD_PAUSE_SECONDS
_READ_ON = 10  # read up to ten times the limit before refusing: a caller who is cut off while sending never sees the response


@dataclass
class BodyLimit:
    """ASGI middleware that reads the whole body of each request, then passes the request on with the body as one message.

    Uploads and requests to `/v1/videos` are passed on piece by piece. If such a body is too slow, the application receives a
    disconnect.
    """

    app: ASGIApp
    most_bytes: int = MOST_BYTES
    seconds: float = BODY_SECONDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["path"] in (UPLOAD, VIDEOS):
            await self.app(scope, _limit_slowness(receive), send)
            return
        texts = texts_for(Headers(scope=scope))
        status, refusal = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, texts.body_refused.format(kilobytes=self.most_bytes // 1000)
        try:
            async with asyncio.timeout(self.seconds):
                message = await self._read_body(scope, receive)
        except TimeoutError:
            message, status, refusal = None, HTTPStatus.REQUEST_TIMEOUT, texts.body_slow
        if message is None:
            await refusal_response(scope, status, refusal, {"connection": "close"})(scope, receive, send)
        else:
            await self.app(scope, replay_message(message, receive), send)

    async def _read_body(self, scope: Scope, receive: Receive) -> Message | None:
        """Return the whole body as one message, or the disconnect message. Return None if the body is too large."""
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


def replay_message(message: Message, receive: Receive) -> Receive:
    """Return a `receive` function that returns `message` first, then the messages of `receive`."""
    unread = [message]

    async def receive_next() -> Message:
        return unread.pop() if unread else await receive()

    return receive_next


def _limit_slowness(receive: Receive) -> Receive:
    """Return a `receive` function that reports a disconnect when the sender pauses too long or is too slow."""
    start, size, is_over = time.monotonic(), 0, False

    async def receive_next() -> Message:
        nonlocal size, is_over
        if is_over:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), UPLOAD_PAUSE_SECONDS)
        except TimeoutError:
            return {"type": "http.disconnect"}
        size += len(message.get("body", b""))
        is_over = not message.get("more_body", False)
        late = time.monotonic() - start - UPLOAD_PAUSE_SECONDS
        return {"type": "http.disconnect"} if late > 0 and size < late * SLOWEST_UPLOAD else message

    return receive_next
