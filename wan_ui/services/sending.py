"""Makes a file for one download and sends it: exports and projects.

Limits how many such files there are at once and how much of the disk they take. A slow reader is cut off when somebody else needs
the place; one who hardly reads at all is cut off in any case. The file is removed with the response.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send

from backend.errors import Busy, RequestError, StudioError
from backend.media.sandbox import Requester
from wan_ui.gateway.limits import FILES_SENT, Limit
from wan_ui.gateway.uploads import LEAST_FREE, has_free_space, temporary_upload_folder
from wan_ui.services.media import PRIVATE, nothing, too_busy
from wan_ui.services.sandbox_calls import unless_gone

GRACE_SECONDS = 10.0  # a new reader is not cut off
SLOW_BYTES = 500_000  # a second: slower readers lose their place to others
LEAST_BYTES = 20_000  # a second: slower readers lose it in any case, after
LEAST_SECONDS = 60.0
_DISK_LOW = "The server's disk is almost full"


class TooManyOwn(Busy):
    """This visitor or address has as many downloads as one may have."""


@dataclass(eq=False, kw_only=True)
class Download:
    """A place for one download. `began` is when sending began; None while the file is made."""

    who: Requester
    num_bytes: int
    began: float | None = None
    sent_bytes: int = 0
    sending: asyncio.Future[None] | None = None
    is_cut: bool = False

    def speed(self, now: float) -> float:
        """Bytes a second so far; infinite before the grace is over."""
        if self.began is None or now < self.began + GRACE_SECONDS:
            return math.inf
        return self.sent_bytes / (now - self.began)

    def cut(self) -> None:
        """Ends the sending."""
        self.is_cut = True
        if self.sending is not None:
            self.sending.cancel()


@dataclass(eq=False, kw_only=True)
class Downloads:
    """The places for downloads. Belongs to one event loop."""

    limit: Limit = FILES_SENT
    read_clock: Callable[[], float] = time.monotonic
    _under_way: list[Download] = field(default_factory=list)

    def enter(self, who: Requester, num_bytes: int) -> Download:
        """A place for a file of at most so many bytes, perhaps a slow reader's. Raises: Busy, TooManyOwn."""
        own = sum(bool(who.owner) and one.who.owner == who.owner for one in self._under_way)
        near = sum(bool(who.address) and one.who.address == who.address for one in self._under_way)
        if own >= self.limit.of_visitor or near >= self.limit.of_address:
            raise TooManyOwn("your other exports and projects", "are still being downloaded", "try again when they are there")
        if len(self._under_way) >= self.limit.in_all:
            now = self.read_clock()
            slowest = min(self._under_way, key=lambda one: one.speed(now))
            if slowest.speed(now) >= SLOW_BYTES:
                raise Busy("as many exports and projects as possible", "are being downloaded", "try again in a minute")
            slowest.cut()
            self.leave(slowest)
        download = Download(who=who, num_bytes=num_bytes)
        self._under_way.append(download)
        return download

    def leave(self, download: Download) -> None:
        """Gives the place back. May be called twice."""
        with contextlib.suppress(ValueError):
            self._under_way.remove(download)

    def expected_bytes(self) -> int:
        """The bytes of all files that are not yet being sent."""
        return sum(one.num_bytes for one in self._under_way if one.began is None)


async def send_made(
    request: Request,
    downloads: Downloads,
    who: Requester,
    make: Callable[[Path], Coroutine[Any, Any, Any]],
    *,
    name: str,
    media_type: str,
    num_bytes: int = 0,
) -> Response:
    """Has `make` write the file, of at most `num_bytes` as far as is known, and sends it as an attachment of this name. If the
    caller goes, the making ends."""
    try:
        download = downloads.enter(who, num_bytes)
    except TooManyOwn as error:
        return _refused(error, 429)
    except Busy as error:
        return too_busy(error)
    folder, response = None, None
    try:
        folder = await asyncio.to_thread(temporary_upload_folder)
        if not has_free_space(Path(folder.name), LEAST_FREE + downloads.expected_bytes()):
            return PlainTextResponse(_DISK_LOW, 507, PRIVATE)
        path = Path(folder.name) / f"file{Path(name).suffix}"
        await unless_gone(request, make(path))
        more = {"media_type": media_type, "filename": name, "headers": PRIVATE}
        response = _Sent(path, downloads=downloads, download=download, done=folder.cleanup, **more)
        return response
    except Busy as error:
        return too_busy(error)
    except RequestError as error:
        return _refused(error, 422)
    except StudioError:
        return nothing()
    except OSError:
        return PlainTextResponse(_DISK_LOW, 507, PRIVATE)
    finally:
        if response is None:
            downloads.leave(download)
            if folder is not None:
                folder.cleanup()


class _Sent(FileResponse):
    """The file, which goes when it is sent, the caller goes, or the reader is cut off."""

    def __init__(self, *arguments: Any, downloads: Downloads, download: Download, done: Callable[[], None], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._downloads, self._download, self._done = downloads, download, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        download, read_clock = self._download, self._downloads.read_clock
        download.began = began = read_clock()

        async def counted(message: Message) -> None:
            await send(message)
            download.sent_bytes += len(message.get("body", b""))
            seconds = read_clock() - began
            if seconds > LEAST_SECONDS and download.sent_bytes < LEAST_BYTES * seconds:
                download.cut()

        try:
            download.sending = asyncio.ensure_future(super().__call__(scope, receive, counted))
            await download.sending
        except asyncio.CancelledError:
            if not download.is_cut:
                raise
        finally:
            self._downloads.leave(download)
            self._done()


def _refused(error: StudioError, status: int) -> Response:
    return PlainTextResponse(str(error), status, PRIVATE)
