"""Files that visitors send, and files that Gradio's own components show. Trusts no path in a request.

How much one visitor may upload within an hour is limited here too.
"""

import os
import secrets
import time
from collections import deque
from pathlib import Path
from typing import Any

from gradio.processing_utils import save_file_to_cache
from gradio.utils import get_upload_folder
from gradio_client.utils import is_file_obj_with_meta
from PIL import Image
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from backend.errors import ImageError
from wan_ui.desk.visitors import owner_of
from wan_ui.words.english import ENGLISH

MOST_BYTES = 500_000_000  # from one visitor within an hour: far more than making videos needs
_HOUR = 3600.0


def uploaded_path(file: dict[str, Any]) -> Path:
    """The path of a file that was uploaded to this server. Raises: ImageError for any other path."""
    return checked_upload(file.get("path") if is_file_obj_with_meta(file) else None)


def checked_upload(path: Any) -> Path:
    """This path, if it is a file below Gradio's upload folder.

    Raises: ImageError, with the same words for every cause, so that the answer does not show what exists on the server.
    """
    folder = Path(get_upload_folder()).resolve()
    try:
        found = Path(str(path)).resolve() if path else folder
    except (OSError, ValueError):
        found = folder
    if not found.is_relative_to(folder) or not os.path.isfile(found):  # Path.is_file fails for very long names
        raise ImageError("image", "must be an uploaded file", "upload it first, for example with handle_file()")
    return found


def to_cache(path: str | Path) -> str:
    """A copy in Gradio's cache, at an address with the SHA-256 of its content: only those who have the file can compute it."""
    return save_file_to_cache(path, get_upload_folder())


def picture_to_cache(picture: Image.Image, folder: Path) -> str:
    """The picture as a file in Gradio's cache; `folder` is a job's or any other that can be written."""
    part = folder / f".{secrets.token_hex(8)}.png"
    try:
        picture.save(part, compress_level=1)
        return to_cache(part)
    finally:
        part.unlink(missing_ok=True)


class UploadLimit:
    """ASGI middleware: refuses uploads from a visitor who has sent too much within the last hour."""

    def __init__(self, app: ASGIApp, most_bytes: int = MOST_BYTES):
        self.app, self.most_bytes = app, most_bytes
        self._sent: dict[str, deque[tuple[float, int]]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"].endswith("/upload"):
            if not self._is_allowed(Request(scope), time.monotonic()):
                text = ENGLISH.upload_refused.format(megabytes=self.most_bytes // 1_000_000)
                await PlainTextResponse(text, status_code=429)(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _is_allowed(self, request: Request, now: float) -> bool:
        length = request.headers.get("content-length", "")
        size = int(length) if length.isdecimal() else self.most_bytes  # unknown size: counts as the whole limit
        who = owner_of(request.cookies, request.client.host if request.client else "")
        self._forget(now)
        sent = self._sent.setdefault(who, deque())
        if sum(count for _, count in sent) + size > self.most_bytes:
            return False
        sent.append((now, size))
        return True

    def _forget(self, now: float) -> None:
        for who, sent in list(self._sent.items()):
            while sent and sent[0][0] < now - _HOUR:
                sent.popleft()
            if not sent:
                del self._sent[who]
