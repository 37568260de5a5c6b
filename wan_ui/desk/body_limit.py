"""Refuses requests whose body is too large, before anything of it is parsed and before anybody has to log in.

Gradio reads and parses a whole body before it looks whether the caller has logged in, and has no limit of its own but for
uploads, which are kept on the disk and have theirs.
"""

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wan_ui.words.english import ENGLISH

# The page's largest request is a file of own presets, which studio.js cuts to 320,000 characters: with Chinese at three bytes
# a character, and the form that goes along, 954 KB (measured in Chromium); 199 ordinary presets are 279 KB, and the form with
# a picture and both prompts as long as a model reads them is 33 KB.
MOST_BYTES = 1_000_000
LONGEST_TEXT = 50_000  # characters of a field: a request has at most four such fields, so it stays below MOST_BYTES
_READ_ON = 10  # times the limit are read, but not kept: a caller who is cut off while still sending never sees the answer
UPLOAD_PATH = "/gradio_api/upload"


class BodyLimit:
    """ASGI middleware: hands on requests with their whole body in one piece, or answers 413 in their place."""

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
        """The body as one message, or that the caller has gone; None if it is too large. Counted as it comes."""
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
        """Under the names by which Gradio's page looks for words to show."""
        text = ENGLISH.body_refused.format(kilobytes=self.most_bytes // 1000)
        return JSONResponse({"error": text, "detail": text}, status_code=413)


def _first(message: Message, receive: Receive) -> Receive:
    """Gives this message, then whatever comes."""
    left = [message]

    async def give() -> Message:
        return left.pop() if left else await receive()

    return give
