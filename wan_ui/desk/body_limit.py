"""Refuses requests whose body is too large, before any of it is parsed and before anybody has to log in.

Gradio reads and parses a whole body before it checks that the caller has logged in, and limits only uploads, which it keeps
on the disk.
"""

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wan_ui.words.english import ENGLISH

# The page's largest request is a file of own presets, which studio.js cuts to 320,000 characters: with Chinese at three bytes
# a character, and the form sent with it, 954 KB (measured in Chromium); 199 ordinary presets are 279 KB, and the form with
# a picture and both prompts as long as a model can read is 33 KB.
MOST_BYTES = 1_000_000
LONGEST_TEXT = 50_000  # characters of a field: a request has at most four text fields, so it stays below MOST_BYTES
_READ_ON = 10  # times the limit are read, but not kept: a caller who is cut off while sending never sees the answer
UPLOAD_PATH = "/gradio_api/upload"


class BodyLimit:
    """ASGI middleware: passes on each request with its whole body in one piece, or answers 413."""

    def __init__(self, app: ASGIApp, most_bytes: int = MOST_BYTES):
        self.app, self.most_bytes = app, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == UPLOAD_PATH:
            await self.app(scope, receive, send)
        elif (message := await self._whole(scope, receive)) is None:
            await self._refusal()(scope, receive, send)
        else:
            await self.app(scope, _first(message, receive), send)

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

    def _refusal(self) -> JSONResponse:
        """The answer 413, with its words in the fields that Gradio's page shows."""
        text = ENGLISH.body_refused.format(kilobytes=self.most_bytes // 1000)
        return JSONResponse({"error": text, "detail": text}, status_code=413)


def _first(message: Message, receive: Receive) -> Receive:
    """Gives this message first, then those that `receive` gives."""
    left = [message]

    async def give() -> Message:
        return left.pop() if left else await receive()

    return give
